"""Metrics that every service has. Registries are passed in; nothing is registered globally."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from stratos.rpc.instruments import Instruments, counter, histogram

_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

_DELAY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

OTHER_TENANTS = "other"


class TenantLabels:
    """Values of the label ``tenant``: the first tenants that come have series of their own, all others share one.

    Without a bound their number would grow with the customers, and with it what every scrape costs.

    Args:
        most: tenants with series of their own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label_of(self, tenant: str) -> str:
        """Return the label's value for a tenant."""
        if tenant in self._known:
            return tenant
        if len(self._known) >= self._most:
            return OTHER_TENANTS
        self._known.add(tenant)
        return tenant


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
