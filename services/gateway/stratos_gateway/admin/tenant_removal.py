"""Renames the entries of deleted tenants in the ledger to a pseudonym.

Its requests end within a poll interval of the gateways, and their entries are written a moment later; the ledger is
renamed after that, once, beside the requests; entries that come later still, such as those of a gateway that died, get
the pseudonym as well.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore

_log = logging.getLogger(__name__)


class LedgerRemoval:
    """Renames ledgers.

    Args:
        ledger: where usage is.
        receipts: of requests, which are removed; ``None`` where none are kept.
        settle_s: how long to wait first.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        ledger: LedgerStore,
        receipts: ReceiptStore | None,
        settle_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._receipts = receipts
        self._settle_s = settle_s
        self._wall_clock = wall_clock
        self._waiting: asyncio.Queue[tuple[float, str, str]] = asyncio.Queue()

    async def has(self, tenant: str) -> bool:
        """Whether the ledger names a tenant: a removal that ended half-way is due again."""
        return tenant in await self._ledger.tenants()

    def begin(self, tenant: str) -> str:
        """Rename a tenant's ledger in a moment; returns its pseudonym."""
        pseudonym = f"deleted-{secrets.token_hex(6)}"
        self._waiting.put_nowait((asyncio.get_running_loop().time() + self._settle_s, tenant, pseudonym))
        return pseudonym

    async def run(self) -> None:
        """Root task."""
        while True:
            due, tenant, pseudonym = await self._waiting.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._rename(tenant, pseudonym)

    async def _rename(self, tenant: str, pseudonym: str) -> None:
        try:
            await self._ledger.pseudonymise(tenant, pseudonym, int(self._wall_clock() * 1000))
            if self._receipts is not None:
                await self._receipts.forget(tenant)
        except (DependencyDown, RedisError) as error:
            _log.warning("the ledger of a deleted tenant keeps its name; delete the tenant again: %s", error)
