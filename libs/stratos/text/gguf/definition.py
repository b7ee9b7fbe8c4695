"""``tokenizer.json`` and ``tokenizer_config.json`` that say the same as the vocabulary of a GGUF file."""

from __future__ import annotations

import json
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.metadata import GgufMetadata
from stratos.text.gguf.byte_pairs import byte_pair_parts, pattern_of
from stratos.text.gguf.sentence_pieces import sentence_piece_parts
from stratos.text.gguf.vocabulary import PREFIX, GgufVocabulary, TokenKind
from stratos.text.tokenizer import Tokenizer

_PARTS = {"gpt2": byte_pair_parts, "llama": sentence_piece_parts}
_ADDED = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)


def tokenizer_definition(metadata: GgufMetadata, vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Content of ``tokenizer.json``, tried out.

    Raises:
        InvalidCheckpoint: a kind of tokenizer that is not there, or tokens that do not come out with their ids.
    """
    kind = metadata.text(f"{PREFIX}model")
    if kind not in _PARTS:
        known = ", ".join(_PARTS)
        raise InvalidCheckpoint(
            f"{metadata.file_name}: {PREFIX}model {kind[:80]!r} is not supported; supported: {known}"
        )
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(vocabulary, index) for index in vocabulary.ids_of(*_ADDED)],
        "post_processor": _post_processor(vocabulary, adds_bos=_adds_bos(metadata, vocabulary, kind)),
        **_PARTS[kind](metadata, vocabulary),
    }
    _try(definition, vocabulary)
    return definition


def tokenizer_config(metadata: GgufMetadata, vocabulary: GgufVocabulary, max_model_len: int) -> dict[str, Any]:
    """Content of ``tokenizer_config.json``: the names that chat templates use."""
    named = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "unk_token": vocabulary.unknown_id,
        "pad_token": vocabulary.padding_id,
    }
    texts = {name: vocabulary.text_of(index) for name, index in named.items() if index is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_model_len, **texts}


def _added(vocabulary: GgufVocabulary, index: int) -> dict[str, Any]:
    """Token that is found in a text before anything is cut."""
    return {
        "id": index,
        "content": vocabulary.tokens[index],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": vocabulary.kinds[index] != TokenKind.USER_DEFINED,
    }


def _adds_bos(metadata: GgufMetadata, vocabulary: GgufVocabulary, kind: str) -> bool:
    if vocabulary.adds_bos is not None:
        return vocabulary.adds_bos
    return kind == "llama" or pattern_of(metadata).adds_bos


def _post_processor(vocabulary: GgufVocabulary, *, adds_bos: bool) -> dict[str, Any] | None:
    """Puts the tokens of a text's beginning and end around it."""
    begin = vocabulary.bos_id if adds_bos else None
    end = vocabulary.eos_id if vocabulary.adds_eos else None
    if begin is None and end is None:
        return None

    def around(name: str, type_id: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": type_id}}]
        if begin is not None:
            parts.insert(0, {"SpecialToken": {"id": vocabulary.tokens[begin], "type_id": type_id}})
        if end is not None:
            parts.append({"SpecialToken": {"id": vocabulary.tokens[end], "type_id": type_id}})
        return parts

    texts = {vocabulary.tokens[index]: index for index in (begin, end) if index is not None}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [index], "tokens": [text]} for text, index in texts.items()},
    }


def _try(definition: dict[str, Any], vocabulary: GgufVocabulary) -> None:
    """Load it: ``tokenizers`` gives added tokens ids of its own where their place in the vocabulary is taken."""
    try:
        tokenizer = Tokenizer(json.dumps(definition, ensure_ascii=False))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpoint(f"{vocabulary.file_name}: its tokens make no tokenizer: {repr(error)[:300]}") from error
    for index in vocabulary.ids_of(*_ADDED):
        if tokenizer.token_piece(index) != vocabulary.tokens[index]:
            raise InvalidCheckpoint(
                f"{vocabulary.file_name}: token {vocabulary.tokens[index][:80]!r} cannot have the id {index}"
            )
