"""Ledgers of older versions, which went by the names of tenants: each becomes that of the tenant's id.

Gateways of an older version may run beside this one, so it is looked for again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.tenants import TenantRecord

_log = logging.getLogger(__name__)
_INTERVAL_S = 60.0


class OlderLedgers:
    """Belongs to the event loop.

    Args:
        ledger: where usage is.
        living: the tenants that there are now, by id.
        first_look: waits until those are known, or cannot be.
    """

    def __init__(
        self,
        ledger: LedgerStore,
        living: Callable[[], Mapping[str, TenantRecord]],
        first_look: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._living = living
        self._first_look = first_look
        self._told: set[str] = set()
        """Ids whose move was logged: a gateway of an older version may write under the name again and again."""

    async def run(self) -> None:
        """Root task."""
        await self._first_look()
        while True:
            try:
                await self.look()
            except (DependencyDown, RedisError) as error:
                _log.debug("ledgers of older versions are looked for later: %s", error)
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """Move the ledgers that go by a name of a tenant from before ids; raises ``DependencyDown``."""
        older = {tenant.name: tenant.id for tenant in self._living().values() if tenant.is_legacy}
        for name in await self._ledger.tenants() if older else ():
            if name in older:
                await self._ledger.move(name, older[name])
                if older[name] not in self._told:
                    self._told.add(older[name])
                    _log.info("the ledger of tenant %s goes by its id %s", name, older[name])
