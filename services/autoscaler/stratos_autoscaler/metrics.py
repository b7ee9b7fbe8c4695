"""The autoscaler's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from stratos.core.placement import WorkerRole
from stratos.planning.observation import PoolObservation
from stratos.planning.planner import Decision


class AutoscalerMetrics:
    """Every series of the autoscaler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._desired = Gauge(
            "stratos_autoscaler_desired_workers", "Workers the pool should have", ["role"], registry=registry
        )
        self._workers = Gauge(
            "stratos_autoscaler_workers", "Workers of the pool by state", ["role", "state"], registry=registry
        )
        self._decisions = Counter(
            "stratos_autoscaler_decisions",
            "Decisions by direction and reason",
            ["role", "direction", "reason"],
            registry=registry,
        )
        self.actions = Counter(
            "stratos_autoscaler_actions",
            "Starts and drains by outcome",
            ["role", "action", "outcome"],
            registry=registry,
        )
        self.poll_failures = Counter(
            "stratos_autoscaler_poll_failures", "Polls without an answer", ["peer"], registry=registry
        )

    def show(self, role: WorkerRole, pool: PoolObservation | None, decision: Decision) -> None:
        """Record one decision and what it was taken on."""
        self._desired.labels(role).set(decision.desired)
        self._decisions.labels(role, decision.direction, decision.reason).inc()
        if pool is not None:
            states = {
                "live": sum(worker.is_live for worker in pool.workers),
                "out": sum(not worker.is_live and not worker.is_draining for worker in pool.workers),
                "draining": sum(worker.is_draining for worker in pool.workers) + pool.num_leaving,
                "starting": pool.num_starting,
            }
            for state, count in states.items():
                self._workers.labels(role, state).set(count)
