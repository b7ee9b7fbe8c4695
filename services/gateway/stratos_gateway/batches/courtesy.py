"""Lines leave the event loop, and the cores that it shares, to requests that clients wait for.

A timer that comes late tells of work that waits, whether the loop has too much of it or the process gets no core.
While clients' requests come, each late one halves the lines that may run, down to one; otherwise they grow by one a
second.  Without clients for ``_ALONE_S`` there is no bound.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

_LOOK_S = 0.02
_PAUSE_S = 0.25
"""After one halving, before the next: lines that run have to end first."""
_ALONE_S = 10.0


class Courtesy:
    """Belongs to the event loop.

    Args:
        client_age_s: since a request above the batch class was open; infinite where none was.
        late_s: of the timer, from which the loop counts as late; 0 bounds nothing.
    """

    def __init__(self, client_age_s: Callable[[], float] = lambda: math.inf, late_s: float = 0.0) -> None:
        self._client_age_s = client_age_s
        self._late_s = late_s
        self._halved_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._count_running: Callable[[], int] = lambda: 0
        self._on_room: Callable[[], None] = lambda: None
        self.limit = math.inf
        """Lines that may run now."""

    def serve(self, count_running: Callable[[], int], on_room: Callable[[], None]) -> None:
        """Say whose lines they are; ``on_room`` is told after each look, as more of them may run then."""
        self._count_running, self._on_room = count_running, on_room

    def watch(self) -> None:
        """Look at the loop as long as lines run."""
        if self._timer is None and self._late_s:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + _LOOK_S
        self._timer = loop.call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._timer = None
        now, num_running = asyncio.get_running_loop().time(), self._count_running()
        self.note(now, now - due_s, num_running)
        if num_running:
            self._wait()
        self._on_room()

    def note(self, now: float, late_s: float, num_running: int) -> None:
        """Take note of a look that came late by so much."""
        if self._client_age_s() > _ALONE_S:
            self.limit = math.inf
        elif late_s >= self._late_s:
            if now >= self._halved_s + _PAUSE_S:
                self._halved_s, self.limit = now, max(1.0, min(self.limit, num_running) / 2)
        elif self.limit < math.inf:
            self.limit += _LOOK_S
