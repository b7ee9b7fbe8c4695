"""Tenants with series of their own in metrics: the largest by tokens, for which all gateways agree in Redis.

Workers get the label with each request, so they agree as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.tenant import PLATFORM_TENANT
from stratos.store.counters.tenant_tokens import MAX_TENANTS, TenantTokenStore
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
NoteTokens = Callable[[str, int], None]
"""Told id of a tenant and tokens of an answer."""


def nothing_noted(tenant_id: str, num_tokens: int) -> None:
    """Tenants that come first have the series."""


class TenantSeries:
    """Belongs to the event loop.

    Args:
        store: counts for all gateways.
        metrics: of the process.
        name_of: a tenant by its id, if there is one.
        interval_s: between two looks.
    """

    def __init__(
        self,
        store: TenantTokenStore,
        metrics: GatewayMetrics,
        name_of: Callable[[str], str | None],
        interval_s: float,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._name_of = name_of
        self._interval_s = interval_s
        self._tokens: Counter[str] = Counter()
        """By tenant id, since the last turn that Redis answered."""

    def note(self, tenant_id: str, num_tokens: int) -> None:
        """Count an answer's tokens."""
        has_room = tenant_id in self._tokens or len(self._tokens) < MAX_TENANTS
        if has_room and tenant_id != PLATFORM_TENANT:
            self._tokens[tenant_id] += num_tokens

    async def run(self) -> None:
        """Root task."""
        while True:
            try:
                await self.turn()
            except (DependencyDown, RedisError) as error:
                _log.debug("the largest tenants are asked for later: %s", error)
            await asyncio.sleep(self._interval_s)

    async def turn(self) -> None:
        """Tell what was counted, and take what was agreed; raises ``DependencyDown``."""
        told = +self._tokens
        chosen = await self._store.add(told)
        self._tokens -= told  # an answer that is lost is counted twice, which changes ranks alone
        names = map(self._name_of, chosen)
        self._metrics.agree_on_tenants(name for name in names if name is not None)
