"""Processes on a virtual loop, each of which the machine may leave without a core: what it was to do comes later.

What a process does runs in its context. While it is starved its callbacks and timers wait, in their order; sockets,
stores and clients, which are of no process, go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.support.virtual_loop import VirtualLoop

T = TypeVar("T")

_PROCESS = contextvars.ContextVar["VirtualProcess | None"]("process", default=None)


class ProcessLoop(VirtualLoop):
    """Time of processes that share a machine."""

    def hold_back(self, handle: asyncio.Handle, context: contextvars.Context) -> bool:
        """Whether its process has no core now; it runs once it has."""
        process = context.get(_PROCESS)
        return process is not None and process.hold_back(handle)

    def go_on(self, handles: deque[asyncio.Handle]) -> None:
        """Run what was held back."""
        self._ready.extend(handles)
        handles.clear()

    def _call_soon(
        self, callback: Callable[..., object], args: Any, context: contextvars.Context | None
    ) -> asyncio.Handle:
        handle = _SoonOfProcess(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerOfProcess(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer


class _SoonOfProcess(asyncio.Handle):
    def _run(self) -> None:
        if not self._loop.hold_back(self, self._context):
            super()._run()


class _TimerOfProcess(asyncio.TimerHandle):
    def _run(self) -> None:
        if not self._loop.hold_back(self, self._context):
            super()._run()


class VirtualProcess:
    """One process; belongs to the loop that runs."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self._loop = loop
        self._until = loop.now()
        self._held_back = deque[asyncio.Handle]()
        self._context = contextvars.copy_context()
        self._context.run(_PROCESS.set, self)

    def call(self, make: Callable[..., T], *args: Any) -> T:
        """What it makes, and the tasks of that, are of this process."""
        return self._context.run(make, *args)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it do something."""
        return await asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def starve(self, seconds: float) -> None:
        """It has no core for so long."""
        self._until = self._loop.now() + seconds
        self._loop.call_at(self._until, self._loop.go_on, self._held_back, context=contextvars.Context())

    def hold_back(self, handle: asyncio.Handle) -> bool:
        """Keep it for later, if there is no core now."""
        if self._loop.now() >= self._until:
            return False
        self._held_back.append(handle)
        return True


async def outside(work: Coroutine[Any, Any, T]) -> T:
    """Something that is of no process: the wire, or a store."""
    return await asyncio.get_running_loop().create_task(work, context=contextvars.Context())
