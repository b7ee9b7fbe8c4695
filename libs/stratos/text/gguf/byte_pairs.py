"""Tokenizers of GPT-2's kind (``tokenizer.ggml.model`` is ``gpt2``): merges of bytes within pieces cut by a pattern.

The file names the pattern (``tokenizer.ggml.pre``) and does not hold it.  One that is not known is refused, since
another pattern would give other tokens than those that the model was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.metadata import GgufMetadata
from stratos.text.gguf.vocabulary import PREFIX, GgufVocabulary, TokenKind

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecePattern:
    """How a text is cut before bytes are merged."""

    pattern: str = ""
    """Empty: GPT-2's own."""
    has_single_digits: bool = False
    is_composed: bool = False
    """Characters are composed first (NFC)."""
    ignores_merges: bool = False
    """A piece that is a token becomes it, whatever the merges say."""
    adds_bos: bool = False
    """Where the file does not say."""


_GPT2 = PiecePattern()
_LLAMA3 = PiecePattern(pattern=_WORDS + r"\p{N}{1,3}" + _REST, ignores_merges=True, adds_bos=True)
_QWEN2 = PiecePattern(pattern=_WORDS + r"\p{N}" + _REST, is_composed=True)
_TEKKEN = PiecePattern(pattern=_CASED + r"\p{N}" + _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1), ignores_merges=True)
PATTERNS = {
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": PiecePattern(has_single_digits=True),
    "tekken": _TEKKEN,
}


def pattern_of(metadata: GgufMetadata) -> PiecePattern:
    """The pattern that the file names; raises ``InvalidCheckpoint`` for one that is not known."""
    name = metadata.text(f"{PREFIX}pre", "default")
    if name not in PATTERNS:
        known = ", ".join(PATTERNS)
        raise InvalidCheckpoint(f"{metadata.file_name}: {PREFIX}pre {name[:80]!r} is not supported; supported: {known}")
    return PATTERNS[name]


def byte_pair_parts(metadata: GgufMetadata, vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, decoder and model of ``tokenizer.json``.

    Raises:
        InvalidCheckpoint: an unknown pattern, or a merge that is none or of tokens that are not there.
    """
    cut = pattern_of(metadata)
    vocab = dict(zip(vocabulary.tokens[: _num_inner(vocabulary)], range(len(vocabulary.tokens)), strict=False))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = []
    if cut.pattern:
        pattern = {"Regex": cut.pattern}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    if cut.has_single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    steps.append({**byte_level, "use_regex": not cut.pattern})
    return {
        "normalizer": {"type": "NFC"} if cut.is_composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": cut.ignores_merges,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }


def _num_inner(vocabulary: GgufVocabulary) -> int:
    """Tokens that the merges' vocabulary holds: all before the added ones at its end.

    A piece of a text could become an added token if that were in it as well, where a piece that is a token becomes it.
    """
    count = len(vocabulary.tokens)
    while count and vocabulary.kinds[count - 1] == TokenKind.UNUSED:
        count -= 1
    while count and vocabulary.kinds[count - 1] in (TokenKind.CONTROL, TokenKind.USER_DEFINED):
        count -= 1
    return count


def _merges(metadata: GgufMetadata, vocab: dict[str, int]) -> list[list[str]]:
    merges = []
    for merge in metadata.texts(f"{PREFIX}merges"):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise InvalidCheckpoint(
                f"{metadata.file_name}: {PREFIX}merges has {merge[:80]!r}, which is no merge of its tokens"
            )
        merges.append([left, right])
    return merges
