"""Whether the client was the bottleneck: then a run says nothing about the server.

A latency counts from the intended arrival, so what the client was late is in it.  A tenth of the TTFT is borne, and a
loop that is late by the time of one token; with more the run is invalid, and another machine must send.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.cli.load.measured import LoadResult
from stratos.cli.load.report.percentiles import Distribution, distribution

BORNE_SHARE = 0.1
BORNE_MS = 10.0
"""Below it timers and schedulers of any machine are late."""
MAX_CPU_SHARE = 0.9
"""Of one core: the client has one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVerdict:
    """The client's own figures, in milliseconds."""

    send_lag: Distribution
    """How much later than intended requests were sent."""
    loop_delay: Distribution
    """How late the event loop was."""
    cpu_share: float
    """Processor time of the process over the time of the run."""
    faults: tuple[str, ...]
    """Why the run is invalid."""

    @property
    def is_valid(self) -> bool:
        """The figures are those of the server."""
        return not self.faults


def client_verdict(result: LoadResult, ttft: Distribution, tpot: Distribution) -> ClientVerdict:
    """Judge the client of a run.

    Args:
        result: of the run.
        ttft: in milliseconds, as measured.
        tpot: the same; its mean, because a late loop makes single gaps longer and others shorter.
    """
    lag = distribution(1e3 * request.lag_s for request in result.requests)
    delay = distribution(1e3 * delay_s for delay_s in result.health.loop_delays_s)
    cpu_share = result.health.cpu_s / result.health.duration_s if result.health.duration_s else 0.0
    num_faults = sum(request.answer.is_client_fault for request in result.requests)
    borne_lag, borne_delay = (max(BORNE_MS, BORNE_SHARE * ttft.p99), max(BORNE_MS, tpot.mean))
    judged = (
        (lag.p99 > borne_lag, f"requests were sent {lag.p99:.1f} ms late (p99), {borne_lag:.1f} ms are borne"),
        (delay.p99 > borne_delay, f"its loop was {delay.p99:.1f} ms late (p99), {borne_delay:.1f} ms are borne"),
        (cpu_share > MAX_CPU_SHARE, f"it had no processor time left: {cpu_share:.0%} of a core"),
        (num_faults > 0, f"it had no socket left for {num_faults} requests"),
    )
    return ClientVerdict(
        send_lag=lag, loop_delay=delay, cpu_share=cpu_share, faults=tuple(text for is_fault, text in judged if is_fault)
    )
