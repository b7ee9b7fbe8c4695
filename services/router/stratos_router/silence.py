"""Ends streams that have been silent for too long, without a timer per message.

Time in which this process itself was held up does not count: what was sent then has not been read yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stratos.common.clock import Clock

LOOK_S = 0.25
LATE_S = 0.5
"""A round that comes this late was held up by this process."""


class Heard:
    """When a stream last brought something."""

    __slots__ = ("at", "limit")

    def __init__(self, at: float, limit: asyncio.Timeout) -> None:
        self.at = at
        self.limit = limit


class SilenceWatch:
    """Belongs to the event loop.

    Args:
        clock: monotonic.
        silent_after_s: a stream without a message for so long is ended.
    """

    def __init__(self, clock: Clock, silent_after_s: float) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._heard: set[Heard] = set()

    @contextmanager
    def watched(self, limit: asyncio.Timeout) -> Iterator[Heard]:
        """Within it the caller notes when a message arrives; after a long silence ``limit`` expires."""
        heard = Heard(self._clock.now(), limit)
        self._heard.add(heard)
        try:
            yield heard
        finally:
            self._heard.discard(heard)

    async def run(self) -> None:
        """Until cancelled."""
        last = self._clock.now()
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._clock.now()
            self.end_silent(now, is_late=now - last > LOOK_S + LATE_S)
            last = now

    def end_silent(self, now: float, *, is_late: bool = False) -> None:
        """End what has been silent; ``is_late`` gives every stream its time again."""
        for heard in self._heard:
            if is_late:
                heard.at = now
            elif now - heard.at > self._silent_after_s and not heard.limit.expired():
                heard.limit.reschedule(asyncio.get_running_loop().time())
