"""The vocabulary of a GGUF file: tokens with their kinds, scores or merges, and the ids that have a task."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.metadata import GgufMetadata
from stratos.text.token_bytes import MAX_VOCAB_SIZE

PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<EOT>", "_<EOT>", "</s>"),
)
"""Control tokens that end an answer by their text, as llama.cpp takes them, whatever the file names as its end."""


class TokenKind(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """Tokens by id, checked."""

    file_name: str
    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: tuple[int, ...]
    """Ids that end an answer, the named one first."""
    adds_bos: bool | None
    """Whether a text begins with ``bos_id``; ``None``: the file does not say."""
    adds_eos: bool

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        """Ids of tokens of some kinds."""
        return [index for index, kind in enumerate(self.kinds) if kind in kinds]

    def text_of(self, token_id: int | None) -> str | None:
        """Text of a token that may not be there."""
        return None if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: GgufMetadata, vocab_size: int) -> GgufVocabulary:
    """Read and check the tokens.

    Args:
        metadata: of the file.
        vocab_size: rows of the embedding.

    Raises:
        InvalidCheckpoint: more tokens than rows, arrays of different lengths, a token twice, or an id without token.
    """
    tokens = metadata.texts(f"{PREFIX}tokens")
    if not 0 < len(tokens) <= min(vocab_size, MAX_VOCAB_SIZE):
        raise InvalidCheckpoint(
            f"{metadata.file_name}: {PREFIX}tokens has {len(tokens)} tokens for {vocab_size} rows of the embedding"
        )
    kinds = _kinds(metadata, len(tokens))
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if seen.setdefault(token, index) != index:
            raise InvalidCheckpoint(
                f"{metadata.file_name}: {PREFIX}tokens has {token[:80]!r} twice, as {seen[token]} and {index}"
            )
    adds_bos = metadata.flag(f"{PREFIX}add_bos_token", False) if f"{PREFIX}add_bos_token" in metadata else None
    return GgufVocabulary(
        file_name=metadata.file_name,
        tokens=tokens,
        kinds=kinds,
        bos_id=_id(metadata, "bos_token_id", len(tokens)),
        eos_id=_id(metadata, "eos_token_id", len(tokens)),
        unknown_id=_id(metadata, "unknown_token_id", len(tokens)),
        padding_id=_id(metadata, "padding_token_id", len(tokens)),
        end_ids=_end_ids(metadata, tokens, kinds),
        adds_bos=adds_bos,
        adds_eos=metadata.flag(f"{PREFIX}add_eos_token", False),
    )


def _kinds(metadata: GgufMetadata, count: int) -> tuple[TokenKind, ...]:
    if f"{PREFIX}token_type" not in metadata:
        return (TokenKind.NORMAL,) * count
    numbers = metadata.numbers(f"{PREFIX}token_type", "bBhHiIqQ")
    if len(numbers) != count:
        raise InvalidCheckpoint(f"{metadata.file_name}: {PREFIX}token_type has {len(numbers)} items for {count} tokens")
    known = {int(kind): kind for kind in TokenKind}
    if strange := set(numbers) - known.keys():
        raise InvalidCheckpoint(f"{metadata.file_name}: {PREFIX}token_type has the unknown kind {min(strange)}")
    return tuple(known[number] for number in numbers)


def _id(metadata: GgufMetadata, name: str, count: int) -> int | None:
    key = PREFIX + name
    if key not in metadata:
        return None
    found = metadata.values[key]
    if found in (-1, 0xFFFFFFFF):  # "there is none" in the files of some converters
        return None
    index = metadata.count(key, least=0)
    if index >= count:
        raise InvalidCheckpoint(f"{metadata.file_name}: {key} is {index}, and there are {count} tokens")
    return index


def _end_ids(metadata: GgufMetadata, tokens: tuple[str, ...], kinds: tuple[TokenKind, ...]) -> tuple[int, ...]:
    named = [_id(metadata, name, len(tokens)) for name in _END_KEYS]
    by_text = [
        index
        for index, token in enumerate(tokens)
        if token in END_TEXTS and kinds[index] in (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    ]
    return tuple(dict.fromkeys(index for index in (*named, *by_text) if index is not None))
