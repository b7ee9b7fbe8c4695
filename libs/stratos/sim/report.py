"""Report of a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos.core.rules.quantile import percentile


@dataclass(slots=True, kw_only=True)
class SimulatedOutcome:
    """One request."""

    arrived_s: float
    first_token_s: float = 0.0
    ended_s: float = 0.0
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run as a row of a table."""

    num_requests: int
    requests_per_s: float
    output_tokens_per_s: float
    hit_ratio: float
    """Share of the prompt tokens that came from a prefix cache."""
    ttft_p50_s: float
    ttft_p99_s: float
    balance: float
    """Sequences of the most loaded worker over the mean, averaged over time; 1 is even."""


@dataclass(slots=True)
class Recorder:
    """Collects a run."""

    outcomes: list[SimulatedOutcome] = field(default_factory=list)
    loads: list[tuple[int, ...]] = field(default_factory=list)
    """Sequences of each worker, at even distances in time."""

    def report(self, *, skip: float = 0.0) -> Report:
        """Sum up.

        Args:
            skip: share of the requests, in the order of their ends, that only warm the caches up.
        """
        ended = sorted(self.outcomes, key=lambda outcome: outcome.ended_s)
        cut = int(len(ended) * skip)
        begin_s = ended[cut - 1].ended_s if cut else 0.0
        counted = ended[cut:]
        span_s = counted[-1].ended_s - begin_s
        ttft = sorted(outcome.first_token_s - outcome.arrived_s for outcome in counted)
        return Report(
            num_requests=len(counted),
            requests_per_s=len(counted) / span_s,
            output_tokens_per_s=sum(outcome.num_output_tokens for outcome in counted) / span_s,
            hit_ratio=_total(counted, "num_cached_tokens") / _total(counted, "num_prompt_tokens"),
            ttft_p50_s=percentile(ttft, 50),
            ttft_p99_s=percentile(ttft, 99),
            balance=self._balance(),
        )

    def _balance(self) -> float:
        per_worker = [sum(loads) for loads in zip(*self.loads, strict=True)]
        return max(per_worker) * len(per_worker) / sum(per_worker) if sum(per_worker) else 1.0


def _total(outcomes: Sequence[SimulatedOutcome], name: str) -> int:
    return sum(getattr(outcome, name) for outcome in outcomes)
