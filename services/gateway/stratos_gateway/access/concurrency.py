"""How many generation requests may be open, in this process and per tenant, and how they end with the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratos.common.errors import ConcurrencyLimited, Draining, Overloaded, StratosError
from stratos_gateway.metrics import GatewayMetrics


class Admission:
    """Counts open requests; a place is given back on every way out of ``enter``.

    Args:
        max_open: of the process.
        max_open_per_tenant: of one tenant.
        metrics: shows the number of open requests.
    """

    def __init__(self, max_open: int, max_open_per_tenant: int, metrics: GatewayMetrics) -> None:
        self._max_open = max_open
        self._max_open_per_tenant = max_open_per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._metrics = metrics
        self.num_open = 0
        self.is_draining = False
        self._ends: set[Callable[[StratosError], None]] = set()
        self._end: StratosError | None = None

    @contextmanager
    def enter(self, tenant: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            Draining, Overloaded: not here, not now.
            ConcurrencyLimited: the tenant has too many requests open.
        """
        if self.is_draining:
            raise Draining("this gateway is leaving; try again")
        if self.num_open >= self._max_open:
            raise Overloaded(f"the gateway has {self.num_open} requests open, its limit")
        if self._by_tenant[tenant] >= self._max_open_per_tenant:
            raise ConcurrencyLimited(f"{self._max_open_per_tenant} requests of this tenant are open, its limit")
        self.num_open += 1
        self._by_tenant[tenant] += 1
        self._metrics.open.inc()
        try:
            yield
        finally:
            self.num_open -= 1
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
            self._metrics.open.dec()

    @contextmanager
    def ends_by(self, end: Callable[[StratosError], None]) -> Iterator[None]:
        """``end`` is called if the process cannot wait for what runs inside; quick, and must not raise."""
        self._ends.add(end)
        if self._end is not None:
            end(self._end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def end_all(self) -> None:
        """The drain's time is over: what is open, or begins now, tells its client so."""
        if self._end is None:
            self._end = Draining("this gateway leaves before the answer is complete; try again")
            self._metrics.ended_by_drain.inc(len(self._ends))
            for end in list(self._ends):
                end(self._end)
