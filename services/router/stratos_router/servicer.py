"""RouterService: messages in, messages out; everything else is in ``PlacementLoop``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from stratos.api.router.v1 import router_pb2, router_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos.rpc.codec.convictions import answer_to_pb, question_from_pb
from stratos.rpc.codec.fleet import fleet_to_pb, gateway_load_from_pb
from stratos.rpc.codec.placement import placement_request_from_pb, placement_to_pb
from stratos.rpc.tracing import SpanKind, Tracing
from stratos_router.placement_loop import PlacementLoop

_log = logging.getLogger(__name__)
_OUTCOMES = {
    router_pb2.OUTCOME_FINISHED: Outcome.FINISHED,
    router_pb2.OUTCOME_CANCELLED: Outcome.CANCELLED,
    router_pb2.OUTCOME_FAILED: Outcome.FAILED,
    router_pb2.OUTCOME_SETTLED: Outcome.SETTLED,
}


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Serves gateways and the autoscaler.

    Args:
        placements: of the process.
        clock: of deadlines.
        tracing: of the process.
        forget_tenant: has all workers drop a tenant's cache; returns how many did, and how many did not answer.
    """

    def __init__(
        self,
        placements: PlacementLoop,
        clock: Clock,
        tracing: Tracing,
        forget_tenant: Callable[[str], Awaitable[tuple[int, int]]],
    ) -> None:
        self._clock = clock
        self._placements = placements
        self._tracing = tracing
        self._forget_tenant = forget_tenant

    async def Schedule(self, request: router_pb2.ScheduleRequest, context: Any) -> router_pb2.ScheduleResponse:
        """Wait in the queue and answer with a placement."""
        return placement_to_pb(await self._schedule(placement_request_from_pb(request, self._clock.now())))

    async def _schedule(self, ask: PlacementRequest) -> Placement:
        request_id, attempt = ask.request_id, ask.attempt
        _log.debug("request %s, attempt %d, asks for a placement", ask.trace.label(request_id), attempt)
        with self._tracing.span(
            "Schedule", ask.trace, kind=SpanKind.SERVER, generation_id=request_id, attempt=attempt
        ) as span:
            placement = await self._placements.schedule(ask)
            span.set(queued_ms=placement.queued_ms, worker_id=placement.worker.worker_id)
        return placement

    async def Complete(self, request: router_pb2.CompleteRequest, context: Any) -> router_pb2.CompleteResponse:
        """End bookings."""
        for report in request.reports:
            if report.outcome not in _OUTCOMES:
                raise BadRequest(f"unknown outcome {report.outcome}", param="outcome")
        for report in request.reports:
            num_output_tokens = report.num_output_tokens if report.HasField("num_output_tokens") else None
            self._placements.complete(report.handoff_id, _OUTCOMES[report.outcome], num_output_tokens)
        return router_pb2.CompleteResponse()

    async def ExchangeConvictions(
        self, request: router_pb2.ExchangeConvictionsRequest, context: Any
    ) -> router_pb2.ExchangeConvictionsResponse:
        """Take over a gateway's convictions, and hand on those of others."""
        return answer_to_pb(self._placements.exchange_convictions(question_from_pb(request)))

    async def ForgetTenant(
        self, request: router_pb2.ForgetTenantRequest, context: Any
    ) -> router_pb2.ForgetTenantResponse:
        """Tell all workers."""
        if not request.tenant:
            raise BadRequest("name a tenant")
        num_workers, num_failed = await self._forget_tenant(request.tenant)
        return router_pb2.ForgetTenantResponse(num_workers=num_workers, num_failed=num_failed)

    async def ReportLoad(self, request: router_pb2.ReportLoadRequest, context: Any) -> router_pb2.ReportLoadResponse:
        """Keep a gateway's load for the autoscaler."""
        self._placements.gateways.note(gateway_load_from_pb(request.load), self._clock.now())
        return router_pb2.ReportLoadResponse()

    async def GetFleet(self, request: router_pb2.GetFleetRequest, context: Any) -> router_pb2.GetFleetResponse:
        """Queues and workers."""
        return fleet_to_pb(self._placements.fleet())
