"""Tokenizers of SentencePiece's kind (``tokenizer.ggml.model`` is ``llama``): pieces with scores, bytes as a fall-back.

Of two neighbours that together are a piece, those of the highest score are joined first.  ``tokenizers`` knows merges
instead of scores, so each piece gives a merge for every way to cut it into two pieces, in the order of the scores.
"""

from __future__ import annotations

import math
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.metadata import GgufMetadata
from stratos.text.gguf.vocabulary import PREFIX, GgufVocabulary, TokenKind

BLANK = "\u2581"
MAX_PIECE_CHARS = 512
"""A longer piece would cost the square of its length; those of published models have fifty."""


def sentence_piece_parts(metadata: GgufMetadata, vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, decoder and model of ``tokenizer.json``.

    Raises:
        InvalidCheckpoint: scores that are no numbers, no token for what is unknown, or rules that are not there.
    """
    if metadata.flag(f"{PREFIX}remove_extra_whitespaces", False):
        raise InvalidCheckpoint(f"{metadata.file_name}: {PREFIX}remove_extra_whitespaces is not supported")
    unknown = vocabulary.ids_of(TokenKind.UNKNOWN)
    unknown_id = vocabulary.unknown_id if vocabulary.unknown_id is not None else next(iter(unknown), None)
    if unknown_id is None:
        raise InvalidCheckpoint(f"{metadata.file_name}: no token stands for what is unknown")
    adds_blank = metadata.flag(f"{PREFIX}add_space_prefix", True)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_blank:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizers = [{"type": "Prepend", "prepend": BLANK}, blanks] if adds_blank else [blanks]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.tokens[unknown_id],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
            "merges": _merges(vocabulary, _scores(metadata, len(vocabulary.tokens))),
        },
    }


def _scores(metadata: GgufMetadata, count: int) -> list[float]:
    scores = [float(score) for score in metadata.numbers(f"{PREFIX}scores", "fd")]
    if len(scores) != count or not all(map(math.isfinite, scores)):
        raise InvalidCheckpoint(f"{metadata.file_name}: {PREFIX}scores must be {count} numbers, one for each token")
    return scores


def _merges(vocabulary: GgufVocabulary, scores: list[float]) -> list[list[str]]:
    ids = {vocabulary.tokens[index]: index for index in vocabulary.ids_of(TokenKind.NORMAL, TokenKind.USER_DEFINED)}
    found: list[tuple[float, int, str, str]] = []
    for piece, index in ids.items():
        if len(piece) > MAX_PIECE_CHARS:
            raise InvalidCheckpoint(f"{vocabulary.file_name}: token {index} has {len(piece)} characters")
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-scores[index], -cut, left, right))
    found.sort(key=lambda merge: merge[:2])  # of the ways to cut one piece, the one with the longest beginning
    return [[left, right] for *_, left, right in found]
