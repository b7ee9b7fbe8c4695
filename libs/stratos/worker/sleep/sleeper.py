"""States of a worker that may sleep, and what leads from one to the next.

    STANDBY ──wake──▶ AWAKE: a spare, whose model is in memory from its start, takes work at once

    AWAKE ──sleep──▶ FALLING_ASLEEP ──what runs has ended──▶ ASLEEP ──wake──▶ WAKING ──loaded──▶ AWAKE
                           │ it does not end, or wake                           │ it cannot load
                           ▼                                                    ▼
                         AWAKE                                                FAILED: the process ends

From FALLING_ASLEEP on nothing new is taken.  Both calls may come at any time and again: one that finds its state gets
it, one that finds it on its way waits for it.  A wake ends a fall that still waits for streams; a sleep waits for the
end of a waking.  A caller that leaves changes nothing: what was begun is finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from stratos.common.clock import Clock
from stratos.common.errors import Busy, StratosError, WorkerLost
from stratos.core.fleet import SleepState

RETRY_S = 0.02
LEAVE_S = 10.0
"""Longest wait for steps that compute what was given back."""
_log = logging.getLogger(__name__)


class SleepingEngine(Protocol):
    """The part of an engine client that sleeps."""

    async def sleep(self) -> int: ...

    async def wake(self) -> None: ...


class Sleeper:
    """Belongs to the event loop.

    Args:
        engine: sleeps and wakes.
        clock: times waking.
        looks: held by whatever looks at an idle engine, and by this one while the engine sleeps.
        shut: called with whether new work is refused.
        settle: waits until no work is left; after so many seconds it gives streams back. Raises ``Busy``.
        verify: looks at an engine that has just woken, before it takes work.
        count: told the outcome of each change, and its seconds.
    """

    def __init__(
        self,
        engine: SleepingEngine,
        clock: Clock,
        looks: asyncio.Lock,
        *,
        shut: Callable[[bool], None],
        settle: Callable[[float], Coroutine[Any, Any, None]],
        verify: Callable[[], Awaitable[None]],
        count: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self._engine, self._clock, self._looks = engine, clock, looks
        self._shut, self._settle, self._verify, self._count = shut, settle, verify, count
        self.state = SleepState.AWAKE
        self._awake = SleepState.AWAKE
        """State in which it has its model, to which a sleep that is refused leads back."""
        self.freed_bytes = 0
        """Memory that its last sleep gave back."""
        self._work: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def not_ready_reason(self) -> str:
        """Why it is lost; "" while it is not."""
        if self.state is not SleepState.FAILED:
            return ""
        return f"it could not wake: {self._failed.exception()}"

    async def wait_failed(self) -> None:
        """Wait until waking has failed, then raise why."""
        await asyncio.shield(self._failed)

    def stand_by(self) -> None:
        """Take no work from now on, with all that work needs in memory."""
        self._enter(SleepState.STANDBY)

    async def sleep(self, timeout_s: float) -> None:
        """Sleep, once what runs has ended or, after ``timeout_s``, was given back.

        Raises:
            Busy: it did not end, or the worker was woken before it slept; it is awake.
            FeatureUnavailable: this engine cannot sleep.
            WorkerLost: it could not wake, and ends.
        """
        while self.state is not SleepState.ASLEEP:
            if self.state is SleepState.WAKING:
                await self._wait()
            else:
                if self.state in (SleepState.AWAKE, SleepState.STANDBY):
                    self._awake = self.state
                    self._enter(SleepState.FALLING_ASLEEP)
                    self._settling = asyncio.ensure_future(self._settle(timeout_s))
                    self._begin(self._fall(self._settling))
                await self._join()

    async def wake(self) -> None:
        """Load again; a spare takes work at once.

        Raises:
            StratosError: it cannot; the process ends.
        """
        while self.state is not SleepState.AWAKE:
            if self.state is SleepState.STANDBY:
                self._enter(SleepState.AWAKE)
            elif self.state is SleepState.FALLING_ASLEEP:
                assert self._settling is not None
                self._settling.cancel()
                await self._wait()
            else:
                if self.state is SleepState.ASLEEP:
                    self._enter(SleepState.WAKING)
                    self._begin(self._wake())
                await self._join()

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that is done whether or not its caller stays."""
        self._work = asyncio.ensure_future(work)
        self._work.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _join(self) -> None:
        """Wait for what is under way, and raise what it raises."""
        self._check_alive()
        assert self._work is not None
        await asyncio.shield(self._work)

    async def _wait(self) -> None:
        """Wait for the end of what is under way, however it ends."""
        assert self._work is not None
        await asyncio.wait([self._work])
        self._check_alive()

    def _check_alive(self) -> None:
        if self.state is SleepState.FAILED:
            raise WorkerLost(self.not_ready_reason)

    def _enter(self, state: SleepState) -> None:
        _log.info("sleep: %s", state.value)
        self.state = state
        self._shut(state is not SleepState.AWAKE)

    async def _fall(self, settling: asyncio.Task[None]) -> None:
        began_s, holds = self._clock.now(), False
        try:
            await self._settled(settling)
            holds = await self._looks.acquire()
            self.freed_bytes = await self._sleep_engine()
        except BaseException:
            if holds:
                self._looks.release()
            self._enter(self._awake)
            self._count("refused", self._clock.now() - began_s)
            raise
        self._enter(SleepState.ASLEEP)
        self._count("asleep", self._clock.now() - began_s)

    async def _settled(self, settling: asyncio.Task[None]) -> None:
        await asyncio.wait([settling])
        if settling.cancelled():
            raise Busy("it was woken before it slept", after_s=1.0)
        settling.result()

    async def _sleep_engine(self) -> int:
        """The last requests leave the engine between two of its steps, which may take long."""
        until_s = self._clock.now() + LEAVE_S
        while True:
            try:
                return await self._engine.sleep()
            except Busy:
                if self._clock.now() >= until_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _wake(self) -> None:
        began_s = self._clock.now()
        try:
            await self._engine.wake()
        except Exception as error:
            self._failed.set_exception(error if isinstance(error, StratosError) else WorkerLost(repr(error)))
            self._failed.exception()  # mark as seen: the waiting task raises it
            self._enter(SleepState.FAILED)
            self._count("failed", self._clock.now() - began_s)
            raise
        self._looks.release()
        await self._verify()
        self._enter(SleepState.AWAKE)
        self._count("awake", self._clock.now() - began_s)
