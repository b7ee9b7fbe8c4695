"""A bound of a wait for another process that does not count the time in which this process itself was held up."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType

LOOK_S = 0.05
"""Between two looks at how late the event loop is; the bound counts so much for each at most."""


class AwakeTimeout(AbstractAsyncContextManager[None]):
    """Like ``asyncio.timeout``, where late turns of the event loop come on top.

    A loop with much to do, or without a core, looks at its timers before it reads an answer that has long come.

    Args:
        within_s: most time; ``None`` is no bound.
    """

    __slots__ = ("_limit", "_look_at_s", "_loop", "_timer", "_within_s")

    def __init__(self, within_s: float | None) -> None:
        self._within_s = within_s
        self._limit = asyncio.timeout(within_s)
        self._loop = asyncio.get_running_loop()
        self._look_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        if self._within_s is not None:
            self._look_later()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look_later(self) -> None:
        self._look_at_s = self._loop.time() + LOOK_S
        self._timer = self._loop.call_at(self._look_at_s, self._look)

    def _look(self) -> None:
        late_s, when_s = self._loop.time() - self._look_at_s, self._limit.when()
        if when_s is None or self._limit.expired():
            return
        self._limit.reschedule(when_s + late_s)
        self._look_later()
