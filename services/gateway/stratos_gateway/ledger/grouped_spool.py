"""Entries on disk before answers leave: those that come while some are written go together with the next ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from stratos.core.ledger.entry import LedgerEntry
from stratos.store.ledger.spool import Spool

_log = logging.getLogger(__name__)


class GroupedSpool:
    """Belongs to the event loop.

    Args:
        spool: of the gateway; each write of it takes as long as the disk does.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: list[tuple[Sequence[LedgerEntry], asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, entries: Sequence[LedgerEntry]) -> bool:
        """Keep entries; ``False`` where the disk does not take them. They go there also if one waits no longer."""
        is_kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, is_kept))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="ledger-spool")
        return await is_kept

    async def _write(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting, []
            is_kept = await self._append([entry for entries, _ in some for entry in entries])
            for _, told in some:
                if not told.done():
                    told.set_result(is_kept)

    async def _append(self, entries: Sequence[LedgerEntry]) -> bool:
        try:
            return await asyncio.to_thread(self._spool.append, entries)
        except OSError as error:
            _log.error("the spool of the ledger cannot be written: %s", error)
            return False
