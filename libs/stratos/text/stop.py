"""Stop strings in a text that arrives in pieces.

Rules: of several matches the one with the earliest end wins, and of those the longest; text that may be the
beginning of a stop string is held back; a match counts only if it ends after the first ``min_tokens``
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """Text that may be shown now, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """State of one choice.

    Args:
        stops: stop strings, none empty.
        include_stop: the stop string stays part of the text.
        min_tokens: the text of this many tokens minus one cannot end the choice.
    """

    __slots__ = ("_held", "_include", "_min_tokens", "_stops")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False, min_tokens: int = 0) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._include = include_stop
        self._min_tokens = min_tokens
        self._held = ""

    @property
    def is_active(self) -> bool:
        """There is something to match; else text may bypass the matcher."""
        return bool(self._stops)

    def feed(self, text: str, num_tokens: int) -> StopResult:
        """Add the text of one token, the ``num_tokens``-th of the choice (counted from 1).

        After a result with ``stop`` the matcher must not be fed again.
        """
        if not self._stops:
            return StopResult(text)
        old, whole = len(self._held), self._held + text
        if num_tokens >= self._min_tokens and (found := self._earliest_end(whole, old)) is not None:
            begin, stop = found
            self._held = ""
            return StopResult(whole[: begin + len(stop)] if self._include else whole[:begin], stop)
        keep = self._num_held(whole)
        self._held = whole[len(whole) - keep :]
        return StopResult(whole[: len(whole) - keep])

    def flush(self) -> str:
        """Text that was held back, at the end."""
        held, self._held = self._held, ""
        return held

    def _earliest_end(self, whole: str, old: int) -> tuple[int, str] | None:
        """Begin of the match that ends first after position ``old``."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = whole.find(stop, max(0, old - len(stop) + 1))
            if begin >= 0 and (best is None or (begin + len(stop), begin) < best[:2]):
                best = (begin + len(stop), begin, stop)
        return None if best is None else best[1:]

    def _num_held(self, whole: str) -> int:
        """Length of the longest end of ``whole`` that is a proper beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(whole)), longest, -1):
                if whole.endswith(stop[:length]):
                    longest = length
                    break
        return longest
