"""Calls a minute that one tenant may make of something that costs more than its answer shows."""

from __future__ import annotations

from collections.abc import Callable

from stratos.common.clock import Clock
from stratos.common.errors import RateLimited
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant

LIST_CALLS = 10
"""A list counts as so many calls: it may show a hundred things, or look at a thousand."""
_MAX_REMEMBERED = 10_000


class CallRate:
    """Belongs to the event loop.

    Args:
        clock: monotonic.
        calls_per_min: of one tenant at this gateway.
        burst: calls that may follow each other at once after a pause.
        what: for people.
    """

    def __init__(self, clock: Clock, calls_per_min: int, burst: int, what: str) -> None:
        self._clock = clock
        self._interval_s = 60 / calls_per_min
        self._burst = burst
        self._what = what
        self._paid_until_s: dict[str, float] = {}

    def pay(self, tenant: str, calls: int = 1) -> None:
        """Count a call of a tenant, by its id, as so many; raises ``RateLimited``."""
        now_s = self._clock.now()
        paid_s = max(now_s, self._paid_until_s.get(tenant, 0.0)) + calls * self._interval_s
        over_s = paid_s - now_s - self._burst * self._interval_s
        if over_s > 1e-9:
            raise RateLimited(f"too many {self._what} a minute", after_s=over_s)
        self._paid_until_s[tenant] = paid_s
        if len(self._paid_until_s) > _MAX_REMEMBERED:
            self._paid_until_s = {name: until_s for name, until_s in self._paid_until_s.items() if until_s > now_s}


def read_rate(clock: Clock, reads_per_min: int) -> Callable[[Tenant, int], None]:
    """Counts calls of tenants about what is kept, of which those of ten seconds may come at once; admins may always."""
    what = "calls about files, batches, responses, streams and receipts"
    rate = CallRate(clock, reads_per_min, max(LIST_CALLS, reads_per_min // 6), what)

    def pay(tenant: Tenant, calls: int) -> None:
        if tenant.role is not Role.ADMIN:
            rate.pay(tenant.id, calls)

    return pay
