"""Fair order of tenants: virtual token counters (Sheng et al., OSDI 2024) with start-time lifting.

A tenant is charged when its request is dispatched; the backlogged tenant with the smallest counter is next.
A tenant that comes back is lifted to the level of the last dispatch, so idling earns no credit.  Two backlogged
tenants therefore never differ by more than the largest charge of either.  A tenant that waits and was never charged
here stands no lower than what other routers tell of: one that has just started does not know what it got.  With weights
the counters hold what was served divided by the tenant's weight, so a tenant of weight 3 gets three times the tokens of
one of weight 1.
"""

from __future__ import annotations

MAX_TENANTS = 4096
MAX_KEPT = 3072
"""Tenants that stay when there are too many: sorting them costs a millisecond, so not at every arrival."""


class ServiceCounters:
    """Service received per tenant, in cost units (weighted tokens)."""

    def __init__(self) -> None:
        self._level = 0.0
        """Counter, before its charge, of the tenant dispatched last: the system's virtual time."""
        self._followed = 0.0
        """The highest level that other routers told of."""
        self._counters: dict[str, float] = {}
        self._uncharged: set[str] = set()
        """Tenants that arrived and were neither charged here nor told of."""
        self._weights: dict[str, int] = {}
        """Last weight of each tenant whose weight is not 1."""

    def __getitem__(self, tenant: str) -> float:
        counter = self._before(tenant) if tenant in self._counters else 0.0
        return counter if counter > 0.0 else 0.0

    def __len__(self) -> int:
        return len(self._counters)

    def weigh(self, tenant: str, weight: int) -> None:
        """Take the weight from a request of the tenant."""
        if weight != 1:
            self._weights[tenant] = weight
        else:
            self._weights.pop(tenant, None)

    def arrive(self, tenant: str) -> None:
        """A tenant without waiting requests gets one."""
        if tenant not in self._counters:
            self._uncharged.add(tenant)
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._level)
        if len(self._counters) > MAX_TENANTS:
            self._prune(tenant)

    def charge(self, tenant: str, cost: float) -> None:
        """A request of the tenant is dispatched."""
        before = self._before(tenant)
        self._uncharged.discard(tenant)
        self._level = max(self._level, before)
        self._counters[tenant] = before + cost / self._weights.get(tenant, 1)

    def standing(self, tenant: str, cost: float) -> tuple[float, float]:
        """The tenant's counter now, and with a charge of ``cost``."""
        before = self._before(tenant)
        return before, before + cost / self._weights.get(tenant, 1)

    def follow(self, tenant: str, start: float, counter: float) -> None:
        """Another router had the tenant at ``start`` and charged it up to ``counter``: here it is as far, at least."""
        self._level, self._followed = max(self._level, start), max(self._followed, start)
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), counter)
        self._uncharged.discard(tenant)
        if len(self._counters) > MAX_TENANTS:
            self._prune(tenant)

    def settle(self, tenant: str, difference: float) -> None:
        """The real cost became known; what it differs from the charge."""
        if tenant in self._counters:
            self._counters[tenant] += difference / self._weights.get(tenant, 1)

    def _before(self, tenant: str) -> float:
        """Its counter as its next charge finds it."""
        counter = self._counters.get(tenant, self._level)
        return max(counter, self._followed) if tenant in self._uncharged else counter

    def _prune(self, keep: str) -> None:
        """Forget tenants that the next arrival would lift anyway, then those with the smallest counters."""
        self._counters = {t: c for t, c in self._counters.items() if c > self._level or t == keep}
        self._weights = {t: w for t, w in self._weights.items() if t in self._counters}
        surplus = len(self._counters) - MAX_KEPT
        for tenant in sorted(self._counters, key=lambda t: self._counters[t])[: max(0, surplus)]:
            if tenant != keep:
                del self._counters[tenant]
        self._uncharged &= self._counters.keys()
