"""AutoscalerService: the history as messages."""

from __future__ import annotations

from typing import Any

from stratos.api.autoscaler.v1 import autoscaler_pb2, autoscaler_pb2_grpc
from stratos.common.clock import Clock
from stratos.planning.observation import count_states
from stratos_autoscaler.history import HistoryEntry
from stratos_autoscaler.scaler import Scaler


class AutoscalerServicer(autoscaler_pb2_grpc.AutoscalerServiceServicer):
    """Serves people."""

    def __init__(self, scaler: Scaler, clock: Clock) -> None:
        self._scaler = scaler
        self._clock = clock

    async def ListDecisions(
        self, request: autoscaler_pb2.ListDecisionsRequest, context: Any
    ) -> autoscaler_pb2.ListDecisionsResponse:
        """The latest decisions."""
        now = self._clock.now()
        return autoscaler_pb2.ListDecisionsResponse(
            decisions=[_to_pb(entry, now) for entry in self._scaler.history.entries(request.max_entries)],
            is_active=self._scaler.is_active,
            problem=self._scaler.problem,
        )


def _to_pb(entry: HistoryEntry, now: float) -> autoscaler_pb2.Decision:
    decision = entry.decision
    return autoscaler_pb2.Decision(
        age_ms=round((now - entry.first_s) * 1000),
        last_age_ms=round((now - entry.last_s) * 1000),
        num_times=entry.num_times,
        role=entry.key.role.value,
        model=entry.key.model_name or entry.key.model_digest,
        mode=entry.mode.value,
        direction=decision.direction.value,
        reason=decision.reason.value,
        blocked="" if decision.blocked is None else decision.blocked.value,
        desired=decision.desired,
        victim=decision.victim,
        inputs=_inputs(entry),
    )


def _inputs(entry: HistoryEntry) -> autoscaler_pb2.Inputs | None:
    load, seen = entry.decision.load, entry.seen
    if load is None or seen is None:
        return None
    states = count_states(seen)
    return autoscaler_pb2.Inputs(
        num_live=states["live"],
        num_out=states["out"],
        num_starting=states["starting"],
        num_draining=states["draining"],
        backlog=load.backlog,
        utilisation=load.utilisation,
        ttft_p95_ms=None if load.ttft_p95_s is None else load.ttft_p95_s * 1000,
        is_partial=seen.is_partial,
    )
