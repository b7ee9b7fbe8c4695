"""Metrics of roll-outs, read from the followed snapshot when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector

from stratos.rpc.instruments import gauge
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.rollout_record import RolloutPhase, RolloutRecord

PERCENT = gauge(
    "stratos_rollout_percent", "Share of a model's sessions that its last roll-out sends to the new revision.",
    "model", "model_digest", "phase",
)  # fmt: skip
PHASE_AGE = gauge(
    "stratos_rollout_phase_age_seconds", "Time since a roll-out began its step, its pause or its end.",
    "model", "phase",
)  # fmt: skip
WRITTEN = gauge(
    "stratos_rollout_written_percent",
    "Share of a model's sessions that its alias sends to the new revision of its last roll-out.",
    "model",
)
OVERDUE = gauge(
    "stratos_rollout_overdue_seconds",
    "Time that a roll-out has been at its step beyond its hold, or that its weights are not written.",
    "model",
)
DRIFT = gauge(
    "stratos_rollout_drift_nats",
    "Mean difference of the log probabilities of a pinned text between both revisions, as a roll-out measured it last.",
    "model",
)


class RolloutMetrics(Collector):
    """Standing of the last roll-out of each model; every gateway shows all.

    Args:
        rollouts: as this gateway follows them.
        alias: of a model's own name; ``None`` where it has none.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        rollouts: Callable[[], Sequence[RolloutRecord]],
        alias: Callable[[str], AliasRecord | None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._rollouts = rollouts
        self._alias = alias
        self._wall_clock = wall_clock

    def collect(self) -> Iterator[Metric]:
        """The families, as ``prometheus_client`` wants them; may run in another thread."""
        now_s, found = self._wall_clock(), self._rollouts()
        age_s = {rollout.model: max(0.0, now_s - rollout.since_us / 1e6) for rollout in found}
        yield PERCENT.family({(r.model, r.new, r.phase.value): float(r.percent) for r in found})
        yield PHASE_AGE.family({(r.model, r.phase.value): age_s[r.model] for r in found})
        yield WRITTEN.family({(r.model,): self._written(r) for r in found})
        yield DRIFT.family({(r.model,): r.drift.mean for r in found if r.drift is not None})
        due = {r.model: _due_s(r) for r in found}
        yield OVERDUE.family({(m,): max(0.0, age_s[m] - s) for m, s in due.items() if s is not None})

    def _written(self, rollout: RolloutRecord) -> float:
        alias = self._alias(rollout.model)
        shares = () if alias is None else (t.weight for t in alias.targets if t.digest == rollout.new)
        return float(sum(shares))


def _due_s(rollout: RolloutRecord) -> float | None:
    """Time after which something is to have happened; ``None`` where nothing has to."""
    if rollout.phase is RolloutPhase.PAUSED or not rollout.is_unfinished:
        return None
    return rollout.hold_s if rollout.is_applied else 0.0
