"""Work of the event loop that comes in portions: other work has its turns between two of them.

What one step produced for thousands of streams would hold up statuses and signs of life for as long as all of it takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

_DONE = object()


class PortionedWork:
    """Pieces of work, one after the other. Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Iterator[None]] = deque()

    def add(self, work: Iterator[None]) -> None:
        """Do the first portion now, unless there is earlier work; ``work`` yields between its portions."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        is_done = True
        try:
            is_done = next(self._waiting[0], _DONE) is _DONE
        finally:  # a bug ends one piece, and not those behind it
            if is_done:
                self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)
