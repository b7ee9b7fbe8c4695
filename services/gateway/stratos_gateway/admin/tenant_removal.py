"""What is left of a deleted tenant in the ledger gets the name of a pseudonym.

Its requests end within a poll interval of the gateways, and their entries are written a moment later; the ledger is
renamed after that, once, beside the requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.ledger.ledger_store import LedgerStore

_log = logging.getLogger(__name__)
SETTLE_S = 4.0
"""More than a poll interval, the wait for a worker's count and the interval of writes together."""


class LedgerRemoval:
    """Renames ledgers.

    Args:
        ledger: where usage is.
        wall_clock: seconds since the epoch.
        settle_s: how long to wait first.
    """

    def __init__(self, ledger: LedgerStore, wall_clock: Callable[[], float], settle_s: float = SETTLE_S) -> None:
        self._ledger = ledger
        self._wall_clock = wall_clock
        self._settle_s = settle_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def has(self, tenant: str) -> bool:
        """Whether the ledger names a tenant: a removal that ended half-way is due again."""
        return tenant in await self._ledger.tenants()

    def begin(self, tenant: str) -> str:
        """Rename a tenant's ledger in a moment; returns its pseudonym."""
        pseudonym = f"deleted-{secrets.token_hex(6)}"
        task = asyncio.create_task(self._rename(tenant, pseudonym))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pseudonym

    async def _rename(self, tenant: str, pseudonym: str) -> None:
        await asyncio.sleep(self._settle_s)
        today = datetime.fromtimestamp(self._wall_clock(), UTC).date()
        try:
            await self._ledger.pseudonymise(tenant, pseudonym, today)
        except (DependencyDown, RedisError) as error:
            _log.warning("the ledger of a deleted tenant keeps its name; delete the tenant again: %s", error)
