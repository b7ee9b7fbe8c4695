"""Turns of tenants at reading their usage: it costs what the tenant has of keys and days, and streams run beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited, RateLimited
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.ledger.usage_reader import MAX_CONNECTIONS, UsageReader

_BURST = 10
_MAX_REMEMBERED = 10_000


class UsageReadings:
    """Belongs to the event loop.

    Args:
        reader: of the sums.
        clock: monotonic.
        reads_per_min: of one tenant at this gateway.
    """

    def __init__(self, reader: UsageReader, clock: Clock, reads_per_min: int) -> None:
        self._reader = reader
        self._clock = clock
        self._interval_s = 60 / reads_per_min
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._reading: set[str] = set()
        self._paid_until_s: dict[str, float] = {}

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
        self._pay(tenant.id)
        self._reading.add(tenant.id)
        try:
            async with self._places:
                yield self._reader
        finally:
            self._reading.discard(tenant.id)

    def _pay(self, tenant: str) -> None:
        now_s = self._clock.now()
        paid_s = max(now_s, self._paid_until_s.get(tenant, 0.0)) + self._interval_s
        over_s = paid_s - now_s - _BURST * self._interval_s
        if over_s > 1e-9:
            raise RateLimited("too many questions about usage a minute", after_s=over_s)
        self._paid_until_s[tenant] = paid_s
        if len(self._paid_until_s) > _MAX_REMEMBERED:
            self._paid_until_s = {name: until_s for name, until_s in self._paid_until_s.items() if until_s > now_s}
