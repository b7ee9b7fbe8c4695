"""Turns of tenants at reading their usage: it costs what the tenant has of keys and days, and streams run beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited
from stratos.core.ledger.exports import TAG_PREFIX
from stratos.core.ledger.sums import UsageTable
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.ledger.usage_reader import MAX_CONNECTIONS, UsageReader
from stratos_gateway.access.call_rate import CallRate
from stratos_gateway.ledger.periods import columns_of, tags_of

_BURST = 10


async def read_table(
    reader: UsageReader, tenant: str, days: Sequence[str], query: Mapping[str, str]
) -> tuple[UsageTable, tuple[str, ...]]:
    """Usage of days as ``group_by`` says, and the columns of its rows: from sums, or where cost tags are asked for,
    from entries.

    Raises:
        BadRequest: an unknown column, or too many rows. DependencyDown: Redis does not answer.
    """
    columns, tags = columns_of(query), tags_of(query)
    if not tags:
        return await reader.table(tenant, days, columns), columns
    table = await reader.table_by_tags(tenant, days, columns, tags)
    return table, (*columns, *(TAG_PREFIX + name for name in tags))


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
