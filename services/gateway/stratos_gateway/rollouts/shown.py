"""Metrics of roll-outs, read from the followed snapshot when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector

from stratos.rpc.instruments import gauge
from stratos.store.models.rollout_record import RolloutPhase, RolloutRecord

PERCENT = gauge(
    "stratos_rollout_percent", "Share of a model's sessions that its last roll-out sends to the new revision.",
    "model", "model_digest", "phase",
)  # fmt: skip
PHASE_AGE = gauge(
    "stratos_rollout_phase_age_seconds", "Time since a roll-out began its step, its pause or its end.",
    "model", "phase",
)  # fmt: skip
OVERDUE = gauge(
    "stratos_rollout_overdue_seconds",
    "Time that a roll-out that runs has been at its step beyond its hold: requests, workers or a clear verdict lack.",
    "model",
)


class RolloutMetrics(Collector):
    """Standing of the last roll-out of each model; every gateway shows all.

    Args:
        rollouts: as this gateway follows them.
        wall_clock: seconds since the epoch.
    """

    def __init__(self, rollouts: Callable[[], Sequence[RolloutRecord]], wall_clock: Callable[[], float]) -> None:
        self._rollouts = rollouts
        self._wall_clock = wall_clock

    def collect(self) -> Iterator[Metric]:
        """The families, as ``prometheus_client`` wants them; may run in another thread."""
        now_s, found = self._wall_clock(), self._rollouts()
        age_s = {rollout.model: max(0.0, now_s - rollout.since_us / 1e6) for rollout in found}
        yield PERCENT.family({(r.model, r.new, r.phase.value): float(r.percent) for r in found})
        yield PHASE_AGE.family({(r.model, r.phase.value): age_s[r.model] for r in found})
        running = (rollout for rollout in found if rollout.phase is RolloutPhase.RUNNING)
        yield OVERDUE.family({(r.model,): max(0.0, age_s[r.model] - r.hold_s) for r in running})
