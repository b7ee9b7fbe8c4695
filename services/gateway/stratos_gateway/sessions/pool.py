"""All sessions of this gateway: opened when first needed, watched, dropped when broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratos.common.background import BackgroundTasks
from stratos.common.clock import Clock
from stratos.common.errors import WorkerLost
from stratos.core.placement import WorkerRef
from stratos_gateway.sessions.session import WorkerSession

WATCH_INTERVAL_S = 0.1
RETURN_TIMEOUT_S = 0.25
"""A worker that is alive answers a new session within this time; a recovery waits no longer for it."""
MOVE_POLL_S = 0.02
LATE_S = 0.5
"""A watch round that comes this late was held up by this process, not by the workers."""


class SessionPool:
    """Belongs to the event loop.

    Args:
        build: makes an unopened session.
        clock: to notice stalls of this process.
        connect_timeout_s: longest wait for a Welcome.
        on_change: hears the number of open sessions.
    """

    def __init__(
        self,
        build: Callable[[WorkerRef], WorkerSession],
        clock: Clock,
        connect_timeout_s: float,
        on_change: Callable[[int], None],
    ) -> None:
        self._build = build
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._on_change = on_change
        self._sessions: dict[tuple[str, str], asyncio.Task[WorkerSession]] = {}
        self._closing = BackgroundTasks()

    @property
    def workers(self) -> list[WorkerRef]:
        """Workers with an open session."""
        open_tasks = [task for task in self._sessions.values() if task.done() and not _is_useless(task)]
        return [task.result().worker for task in open_tasks]

    async def get(self, worker: WorkerRef) -> WorkerSession:
        """The open session with a worker process.

        Raises:
            WorkerLost: it cannot be opened.
        """
        key = (worker.address, worker.incarnation)
        task = self._sessions.get(key)
        if task is None or _is_useless(task):
            self._drop(key)
            task = self._sessions[key] = asyncio.create_task(self._open(worker))
        elif task.done():  # as nearly always
            return task.result()
        session = await asyncio.shield(task)
        self._on_change(len(self._sessions))
        return session

    async def is_back(self, worker: WorkerRef, within_s: float = RETURN_TIMEOUT_S) -> bool:
        """Whether a worker process whose session broke takes a new one at once: only the connection was lost."""
        try:
            async with asyncio.timeout(within_s):
                await self.get(worker)
        except (WorkerLost, TimeoutError):
            return False
        return True

    async def has_moved(self, worker: WorkerRef, step: int) -> bool:
        """Whether a worker process that stood still at ``step`` moves again; one that only answers does not."""
        try:
            async with asyncio.timeout(RETURN_TIMEOUT_S):
                session = await self.get(worker)
                # A few looks within the short time are cheaper than an event per step.
                while session.step <= step:  # noqa: ASYNC110
                    await asyncio.sleep(MOVE_POLL_S)
        except (WorkerLost, TimeoutError):
            return False
        return True

    async def run(self) -> None:
        """Root task: watch the workers' progress, and put broken sessions away."""
        last_s = self._clock.now()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now_s = self._clock.now()
            is_late, last_s = now_s - last_s > LATE_S, now_s
            for key, task in list(self._sessions.items()):
                if _is_useless(task):
                    self._drop(key)
                elif task.done():
                    session = task.result()
                    session.forgive() if is_late else session.check()

    async def close(self) -> None:
        """Close all sessions."""
        for key in list(self._sessions):
            self._drop(key)
        await self._closing.close()

    async def _open(self, worker: WorkerRef) -> WorkerSession:
        session = self._build(worker)
        await session.open(self._connect_timeout_s)
        return session

    def _drop(self, key: tuple[str, str]) -> None:
        task = self._sessions.pop(key, None)
        if task is None:
            return
        self._on_change(len(self._sessions))
        self._closing.spawn(_close(task), name=f"close session with {key[0]}")


def _is_useless(task: asyncio.Task[WorkerSession]) -> bool:
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or task.result().is_broken


async def _close(task: asyncio.Task[WorkerSession]) -> None:
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, WorkerSession):
        await outcome.close()
