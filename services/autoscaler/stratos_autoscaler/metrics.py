"""The autoscaler's metrics."""

from __future__ import annotations

from stratos.planning.observation import PoolObservation, count_states
from stratos.planning.planner import PlanningDecision
from stratos.planning.settings import PoolBounds, PoolKey
from stratos.rpc.instruments import Instruments, counter, gauge, histogram


class AutoscalerMetrics(Instruments):
    """Every series of the autoscaler."""

    _desired = gauge("stratos_autoscaler_desired_workers", "Workers the pool should have", "role", "model")
    _workers = gauge("stratos_autoscaler_workers", "Workers of the pool by state", "role", "model", "state")
    _bounds = gauge(
        "stratos_autoscaler_bound_workers", "Bounds of the pool's size: floor, min, max", "role", "model", "bound"
    )
    _pools = gauge(
        "stratos_autoscaler_pool_info",
        "1 for a pool: who scales it, to join other series with",
        "role",
        "model",
        "mode",
    )
    is_active = gauge("stratos_autoscaler_active", "1 while this autoscaler holds the lease and acts")
    routers_missing = gauge("stratos_autoscaler_routers_missing", "Routers that did not answer the last poll")
    _decisions = counter(
        "stratos_autoscaler_decisions", "Decisions by direction and reason", "role", "model", "direction", "reason"
    )
    actions = counter(
        "stratos_autoscaler_actions", "Starts and drains by outcome", "role", "model", "action", "outcome"
    )
    turns = counter(
        "stratos_autoscaler_turns", "Changes of the model that has a shared device, by outcome", "outcome",
        zeros=("done", "failed"),
    )  # fmt: skip
    turn_seconds = histogram(
        "stratos_autoscaler_turn_change_seconds",
        "Time from the end of one model's turn on a shared device to the beginning of the next one's",
        buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    )
    poll_failures = counter("stratos_autoscaler_poll_failures", "Polls without an answer", "peer")
    model_resources = gauge("stratos_autoscaler_model_resources", "Objects of kind Model by their state", "state")
    asked = counter("stratos_autoscaler_metrics_api_questions", "Questions of HPAs for numbers by outcome", "outcome")

    def turned(self, outcome: str, took_s: float) -> None:
        """A shared device went to another model, or did not."""
        self.turns.labels(outcome).inc()
        if outcome == "done":
            self.turn_seconds.observe(took_s)

    def acted(self, key: PoolKey, action: str, outcome: str) -> None:
        """A start or a drain ended."""
        self.actions.labels(*_names(key), action, outcome).inc()

    def show_bounds(self, bounds: PoolBounds) -> None:
        """Record what a pool's size is held to, and by whom."""
        self._pools.labels(*_names(bounds.key), bounds.mode.value).set(1)
        for name, size in (("floor", bounds.floor), ("min", bounds.min_workers), ("max", bounds.max_workers)):
            self._bounds.labels(*_names(bounds.key), name).set(size)

    def show(self, key: PoolKey, pool: PoolObservation | None, decision: PlanningDecision) -> None:
        """Record one decision and what it was taken on; without data what was shown stays."""
        self._decisions.labels(*_names(key), decision.direction, decision.reason).inc()
        if pool is not None:
            self.show_size(key, pool, decision.desired)

    def show_size(self, key: PoolKey, pool: PoolObservation, desired: int) -> None:
        """Record how many workers there are, and how many there should be."""
        names = _names(key)
        self._desired.labels(*names).set(desired)
        for state, count in count_states(pool).items():
            self._workers.labels(*names, state).set(count)

    def forget_pools(self) -> None:
        """The pools are others: those that stay are shown again."""
        for shown in (self._desired, self._workers, self._bounds, self._pools):
            shown.clear()

    def forget_desired(self) -> None:
        """Another autoscaler acts: what this one wanted is old."""
        self._desired.clear()


def _names(key: PoolKey) -> tuple[str, str]:
    return key.role.value, key.shown_name
