"""Text that no layer is calibrated with: the ends of the texts, by which the result is said to be good."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.errors import BadRequest
from stratos.quality.expected import EXPECTED_TOKENS
from stratos.quality.held_out import HeldOutText
from stratos.text.tokenizer import Tokenizer

FIRST_CHARS = 2048
SEAM_TOKENS = 8
"""Tokens that the ends may lose where they are joined."""


def hold_back(texts: Sequence[HeldOutText], tokenizer: Tokenizer) -> tuple[list[HeldOutText], str]:
    """The texts without their ends, and the ends as one text of at least ``EXPECTED_TOKENS``.

    Raises:
        BadRequest: a text is so short that its end would be more than its half.
    """
    share = -(-EXPECTED_TOKENS // len(texts))
    kept, ends = [], []
    for text in texts:
        begin = len(text.text) - _chars_of(text, share, tokenizer)
        kept.append(HeldOutText(name=text.name, text=text.text[:begin]))
        ends.append(text.text[begin:])
    return kept, "".join(ends)


def _chars_of(text: HeldOutText, tokens: int, tokenizer: Tokenizer) -> int:
    """Characters of an end with so many tokens, whole lines where there are lines."""
    num_chars = FIRST_CHARS
    while num_chars <= len(text.text) // 2:
        begin = len(text.text) - num_chars
        line = text.text.find("\n", begin) + 1
        begin = line if 0 < line < len(text.text) else begin
        if len(tokenizer.encode_plain(text.text[begin:])) > tokens + SEAM_TOKENS:
            return len(text.text) - begin
        num_chars *= 2
    raise BadRequest(
        f"text {text.name} is too short: {tokens} tokens of its end are held back, to say how good the result is, "
        "and at least as much must be left",
        param="--calibration",
    )
