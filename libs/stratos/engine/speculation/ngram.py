"""Drafts from a request's own tokens (prompt lookup): what followed the last tokens when they came before.

Edits, summaries and code repeat their prompt; other text hardly ever does, and then there is no draft at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Series

from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.proposer import Proposer

SHORT, LONG = 3, 5
"""Last tokens that must have come before, and those that are better: the newest occurrence counts."""
WIDTH = array("i").itemsize


class NgramProposer(Proposer):
    """Remembers the tokens of a sequence as bytes, four each, since bytes are searched fastest."""

    name = "ngram"

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        tokens = sequence.tokens
        if state.memory is None:
            state.memory = bytearray()
        text: bytearray = state.memory
        text += array("i", tokens[len(text) // WIDTH :]).tobytes()
        short = _find_before(text, SHORT)
        if short is None:
            return ()
        longer = _find_before(text, LONG)
        begin = short if longer is None else longer
        period = len(tokens) - begin
        # 1 2 3 4 1 2 3: what follows 1 2 3 is 4 1 2 3, and then the same again
        return [tokens[begin + i % period] for i in range(max_tokens)]


def _find_before(text: bytearray, size: int) -> int | None:
    """Place of the token after the newest earlier occurrence of the last ``size`` tokens."""
    pattern, end = text[-size * WIDTH :], len(text) - WIDTH
    if len(text) <= size * WIDTH:
        return None
    place = text.rfind(pattern, 0, end)
    while place > 0 and place % WIDTH:
        place = text.rfind(pattern, 0, place + len(pattern) - 1)  # bytes of two tokens that happen to be equal
    return None if place < 0 or place % WIDTH else place // WIDTH + size
