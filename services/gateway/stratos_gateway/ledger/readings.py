"""Turns of tenants at reading their usage: it costs what the tenant has of keys and days, and streams run beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.ledger.usage_reader import MAX_CONNECTIONS, UsageReader
from stratos_gateway.access.call_rate import CallRate

_BURST = 10


class UsageReadings:
    """Belongs to the event loop.

    Args:
        reader: of the sums.
        clock: monotonic.
        reads_per_min: of one tenant at this gateway.
    """

    def __init__(self, reader: UsageReader, clock: Clock, reads_per_min: int) -> None:
        self._reader = reader
        self._rate = CallRate(clock, reads_per_min, _BURST, "questions about usage")
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._reading: set[str] = set()

    @asynccontextmanager
    async def by(self, tenant: Tenant) -> AsyncIterator[UsageReader]:
        """One question of a tenant; an admin of the platform, who asks for all of them, only waits for a place.

        Raises:
            ConcurrencyLimited: another question of the tenant is being answered. RateLimited: too many a minute.
        """
        if tenant.role is Role.ADMIN:
            async with self._places:
                yield self._reader
            return
        if tenant.id in self._reading:
            raise ConcurrencyLimited("one question about usage of this tenant is answered at a time", after_s=1.0)
        self._rate.pay(tenant.id)
        self._reading.add(tenant.id)
        try:
            async with self._places:
                yield self._reader
        finally:
            self._reading.discard(tenant.id)
