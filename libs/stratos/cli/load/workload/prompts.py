"""Prompts as segments: each is a seed and a length, so a plan of ten million requests holds no token.

Requests with the same leading segments have the same leading tokens, which is all that a prefix cache sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

FIRST_TOKEN = 10
"""Prompt ids begin here: below are special tokens of most tokenizers."""
_WORDS = tuple(first + rest for first in "bdfghklmnprstv" for rest in ("a", "ena", "iro", "olu", "umi"))


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens drawn from a seed; the same seed gives a longer or shorter run of the same tokens."""

    seed: int | str
    num_tokens: int


def token_ids(segments: Iterable[Segment], vocab_size: int) -> list[int]:
    """Tokens of a prompt, in [10, vocab_size)."""
    span = vocab_size - FIRST_TOKEN
    ids: list[int] = []
    for segment in segments:
        # One call for all tokens: a prompt of 12 K tokens drawn one by one would itself delay the next arrival.
        values = memoryview(Random(segment.seed).randbytes(4 * segment.num_tokens)).cast("I")
        ids.extend(FIRST_TOKEN + value % span for value in values)
    return ids


def text_of(ids: Iterable[int]) -> str:
    """Words for a chat, one for each token; how many tokens they are is the server's to say."""
    return " ".join(_WORDS[token % len(_WORDS)] for token in ids)
