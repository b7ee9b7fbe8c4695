"""Sessions with every worker that a gateway of the platform has met: one may hold counts of a gateway that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, WorkerLost
from stratos.core.placement import WorkerRef
from stratos_gateway.sessions.pool import SessionPool

_log = logging.getLogger(__name__)


class WorkerNotes(Protocol):
    """Where gateways note workers; ``store.ledger.LedgerStore`` is the one of a gateway."""

    async def workers(self) -> list[WorkerRef]:
        """All of them; raises ``DependencyDown``."""
        ...

    async def note_workers(self, workers: Sequence[WorkerRef]) -> None:
        """Add some; raises ``DependencyDown``."""
        ...

    async def forget_worker(self, worker: WorkerRef) -> None:
        """Take one out; raises ``DependencyDown``."""
        ...


class WorkerSearch:
    """Belongs to the event loop.

    Args:
        notes: shared by all gateways.
        sessions: of this one.
        interval_s: between two looks.
    """

    def __init__(self, notes: WorkerNotes, sessions: SessionPool, interval_s: float) -> None:
        self._notes = notes
        self._sessions = sessions
        self._interval_s = interval_s

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except (DependencyDown, RedisError) as error:
                _log.debug("workers are looked for later: %s", error)

    async def look(self) -> None:
        """Note the workers that this gateway knows, and meet the ones that others know."""
        own = self._sessions.workers
        known = {(worker.address, worker.incarnation) for worker in own}
        noted = await self._notes.workers()
        await self._notes.note_workers([worker for worker in own if worker not in noted])
        for worker in noted:
            if (worker.address, worker.incarnation) in known:
                continue
            try:
                await self._sessions.get(worker)
            except WorkerLost:
                await self._notes.forget_worker(worker)
