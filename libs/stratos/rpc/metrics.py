"""Metrics that every service has. Registries are passed in; nothing is registered globally."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from stratos.core.tenant import PLATFORM_TENANT
from stratos.rpc.instruments import Instruments, counter, histogram

_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

_DELAY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

OTHER_TENANTS = "other"
_ALWAYS = frozenset((OTHER_TENANTS, PLATFORM_TENANT))


class TenantLabels:
    """Values of the label ``tenant``: some tenants have series of their own, all others share one.

    Without a bound their number would grow with the customers, and with it what every scrape costs.  Places go to the
    tenants of an agreement, and those that it leaves to the first that come; without one, all do.

    Args:
        most: tenants with series of their own, the platform itself beside them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, None] = {}
        """In the order in which they came."""

    def label_of(self, tenant: str) -> str:
        """Return the label's value for a tenant."""
        if tenant in self._known or tenant in _ALWAYS:
            return tenant
        if len(self._known) >= self._most:
            return OTHER_TENANTS
        self._known[tenant] = None
        return tenant

    def agree(self, tenants: Iterable[str]) -> list[str]:
        """Give the places to these, the first ones if there are too many; returns those that have lost theirs."""
        agreed = dict.fromkeys(islice(tenants, self._most))
        others = [tenant for tenant in self._known if tenant not in agreed]
        num_free = self._most - len(agreed)
        self._known = agreed | dict.fromkeys(others[:num_free])
        return others[num_free:]

    def forget(self, tenant: str) -> None:
        """Free the place of a tenant, whose series are over."""
        self._known.pop(tenant, None)


class RpcMetrics(Instruments):
    """Duration of the calls that one service answered."""

    _duration = histogram(
        "stratos_rpc_duration_seconds", "Duration of an rpc, from its arrival to its end.",
        "service", "method", "code", buckets=_DURATION_BUCKETS_S,
    )  # fmt: skip

    def __init__(self, registry: CollectorRegistry, service: str) -> None:
        super().__init__(registry)
        self._service = service

    def observe(self, method: str, code: str, duration_s: float) -> None:
        """Count one call."""
        self._duration.labels(self._service, method.rpartition("/")[2], code).observe(duration_s)


class LoopMetrics(Instruments):
    """Delay of a process's event loop, and the lines that its log lost so as not to delay it."""

    _delay = histogram(
        "stratos_event_loop_delay_seconds",
        "How much later than asked the event loop woke a task, asked four times a second.", buckets=_DELAY_BUCKETS_S,
    )  # fmt: skip

    _lost_lines = counter(
        "stratos_log_lines_lost", "Log lines that were not written: stderr is read too slowly, or takes nothing.",
    )  # fmt: skip
    _num_lost_before = 0

    def observe(self, delay_s: float) -> None:
        """Count one wake-up."""
        self._delay.observe(max(0.0, delay_s))

    def show_lost_lines(self, num_lost: int) -> None:
        """Count lines of the log, of which ``num_lost`` were lost so far; handlers that have ended may make it less."""
        self._lost_lines.inc(max(0, num_lost - self._num_lost_before))
        self._num_lost_before = max(num_lost, self._num_lost_before)


def register_process_metrics(registry: CollectorRegistry) -> None:
    """Add memory, CPU, file descriptors and the interpreter's version.

    The client library's ``_created`` series are left out in the whole process: they would double the counters, and
    nothing reads them.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
