"""Budgets of tenants for a month: checked in memory, known from Redis a moment ago.

A request is refused once the tenant owes its hard bound.  What is open then goes on, and what other gateways wrote in
the last ``budget_interval_s`` is not known yet, so the bound may be passed by that much.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, InsufficientQuota
from stratos.core.ledger.entry import day_of
from stratos.core.tenancy.prices import Budget
from stratos.core.tenant import Tenant
from stratos.rpc.metrics import OTHER_TENANTS
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
FIRST_LOOK_S = 0.05
"""Longest wait of a tenant's first requests. Redis away counts as nothing spent, and no later request waits for it."""
_IDLE_S = 600.0


@dataclass(slots=True)
class _Spend:
    month: str
    due: int | None = None
    """``None`` before the first look."""
    is_tried: bool = False
    """A request has waited for the first look in vain; ``run`` looks again."""
    used_s: float = 0.0
    alerts: set[str] = field(default_factory=set)
    """Levels reached in the month so far."""


@dataclass(frozen=True, slots=True)
class _Terms:
    name: str
    budget: Budget


class Budgets:
    """Belongs to the event loop.

    Args:
        spend: what a tenant owes for a month, by its id, from Redis.
        metrics: of the process.
        interval_s: between two looks.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        spend: Callable[[str, str], Awaitable[int]],
        metrics: GatewayMetrics,
        interval_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._spend = spend
        self._metrics = metrics
        self._interval_s = interval_s
        self._wall_clock = wall_clock
        self._known: dict[str, _Spend] = {}
        self._terms: dict[str, _Terms] = {}

    async def check(self, tenant: Tenant) -> list[tuple[bytes, bytes]]:
        """Headers of the answer: where the tenant is past its soft bound they say so.

        Raises:
            InsufficientQuota: its hard bound is spent.
        """
        budget = tenant.plan.budget
        if not (budget.soft or budget.hard):
            return []
        found = self._of(tenant.id)
        self._terms[tenant.id], found.used_s = _Terms(tenant.name, budget), self._wall_clock()
        if found.due is None and not found.is_tried:
            await self._first_look(tenant.id)
            found.is_tried = True
        due = found.due or 0
        if budget.hard and due >= budget.hard:
            raise InsufficientQuota("the budget of this month is spent")
        return [(b"x-budget-warning", b"soft")] if budget.soft and due >= budget.soft else []

    def note_due(self, tenant: str, month: str, due: int) -> None:
        """A write said what a tenant owes for a month."""
        if tenant in self._known and self._of(tenant).month == month:
            self._set(tenant, due)

    async def run(self) -> None:
        """Root task: what other gateways wrote."""
        while True:
            await asyncio.sleep(self._interval_s)
            for tenant in list(self._known):
                if self._wall_clock() - self._known[tenant].used_s > _IDLE_S:
                    del self._known[tenant]
                    continue
                try:
                    await self._look(tenant)
                except (DependencyDown, RedisError) as error:
                    _log.debug("what tenants owe is looked up later: %s", error)
                    break

    async def _first_look(self, tenant: str) -> None:
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._look(tenant)
        except (TimeoutError, DependencyDown, RedisError):
            return

    async def _look(self, tenant: str) -> None:
        month = self._of(tenant).month
        due = await self._spend(tenant, month)
        if self._of(tenant).month == month:
            self._set(tenant, due)

    def _of(self, tenant: str) -> _Spend:
        month = day_of(int(self._wall_clock() * 1000))[:7]
        found = self._known.get(tenant)
        if found is None or found.month != month:
            found = self._known[tenant] = _Spend(month, used_s=self._wall_clock())
        return found

    def _set(self, tenant: str, due: int) -> None:
        found, terms = self._known[tenant], self._terms.get(tenant)
        found.due = due
        if terms is None:
            return
        budget = terms.budget
        bound = budget.hard or budget.soft
        if (label := self._metrics.tenants.label_of(terms.name)) != OTHER_TENANTS:  # of which there is no one value
            self._metrics.budget_used.labels(label).set(due / bound)
        percents = [percent for percent in budget.alert_percents if budget.hard and due * 100 >= budget.hard * percent]
        reached = {f"{percent} percent" for percent in percents} | ({"soft"} if 0 < budget.soft <= due else set())
        for level in sorted(reached - found.alerts):
            found.alerts.add(level)
            self._metrics.budget_alerts.labels(label, level).inc()
            _log.warning("tenant %s has spent %d micro-units this month: %s", terms.name, due, level)
