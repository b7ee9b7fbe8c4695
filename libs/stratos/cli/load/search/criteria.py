"""Criteria of a load that is borne: a promise is kept, or latencies are not yet those of a queue."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.cli.load.report.summary import LoadReport

KNEE_STRETCH = 2.0
MAX_FAILED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class KeepsPromise:
    """So large a share of all requests, refused ones too, keeps the promised latencies."""

    share: float

    def is_met(self, report: LoadReport) -> bool:
        """Whether the run does."""
        return (report.all.good_share or 0.0) >= self.share


@dataclass(slots=True)
class BelowKnee:
    """Medians of TTFT and of time per token are at most twice those of the first run, which is a light load.

    At rho of a server's capacity a request waits 1 / (1 - rho) as long: twice at one half.  Where batching lets a
    server go faster under load the knee is later, and steeper.
    """

    ttft_ms: float | None = None
    tpot_ms: float = 0.0

    def is_met(self, report: LoadReport) -> bool:
        """Whether the run does; the first one does, if it has answers."""
        figures = report.all
        num_all = figures.num_completed + figures.num_failed
        if figures.num_failed > MAX_FAILED_SHARE * num_all:
            return False
        if self.ttft_ms is None:
            self.ttft_ms, self.tpot_ms = figures.ttft.p50, figures.tpot.p50
        return figures.ttft.p50 <= KNEE_STRETCH * self.ttft_ms and figures.tpot.p50 <= KNEE_STRETCH * self.tpot_ms
