"""RouterService: messages in, messages out; everything else is in ``PlacementLoop``.

Gateways ask over a ``Session``; the calls ``Schedule`` and ``Complete`` are there for builds without it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from stratos.api.router.v1 import router_pb2, router_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest
from stratos.core.placement import Placement, PlacementRequest
from stratos.rpc.codec.convictions import GATEWAY_UPDATE, ROUTER_UPDATE
from stratos.rpc.codec.fleet import FLEET, GATEWAY_LOAD
from stratos.rpc.codec.placement import ATTEMPT_REPORT, PLACEMENT, placement_request_from_pb
from stratos.rpc.tracing import SpanKind, Tracing
from stratos_router.gateway_session import GatewaySessions
from stratos_router.placement_loop import PlacementLoop

_log = logging.getLogger(__name__)


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
        self._sessions = GatewaySessions(self._answer)

    async def Session(self, request_iterator: Any, context: Any) -> None:
        """Many calls of one gateway."""
        await self._sessions.serve(context)

    async def close_sessions(self) -> None:
        """End all sessions, each after the calls that it has: for a router that leaves."""
        await self._sessions.close()

    async def _answer(self, call: router_pb2.SessionCall) -> router_pb2.SessionAnswer:
        match call.WhichOneof("request"):
            case "schedule":
                return router_pb2.SessionAnswer(schedule=await self.Schedule(call.schedule, None))
            case "complete":
                return router_pb2.SessionAnswer(complete=await self.Complete(call.complete, None))
            case _:
                raise BadRequest("a Session takes Schedule and Complete")

    async def Schedule(self, request: router_pb2.ScheduleRequest, context: Any) -> router_pb2.ScheduleResponse:
        """Wait in the queue and answer with a placement."""
        return PLACEMENT.to_pb(await self._schedule(placement_request_from_pb(request, self._clock.now())))

    async def _schedule(self, request: PlacementRequest) -> Placement:
        request_id, attempt, trace = request.request_id, request.attempt, request.trace
        _log.debug("request %s, attempt %d, wants a placement", trace.label(request_id), attempt)
        with self._tracing.span(
            "Schedule", trace, kind=SpanKind.SERVER, generation_id=request_id, attempt=attempt
        ) as span:
            placement = await self._placements.schedule(request)
            span.set(queued_ms=placement.queued_ms, worker_id=placement.worker.worker_id)
        return placement

    async def Complete(self, request: router_pb2.CompleteRequest, context: Any) -> router_pb2.CompleteResponse:
        """End bookings."""
        for report in [ATTEMPT_REPORT.from_pb(message) for message in request.reports]:  # all are checked first
            self._placements.complete(report.handoff_id, report.outcome, report.num_output_tokens)
        return router_pb2.CompleteResponse()

    async def ExchangeConvictions(
        self, request: router_pb2.ExchangeConvictionsRequest, context: Any
    ) -> router_pb2.ExchangeConvictionsResponse:
        """Take over a gateway's convictions, and hand on those of others."""
        return ROUTER_UPDATE.to_pb(self._placements.exchange_convictions(GATEWAY_UPDATE.from_pb(request)))

    async def ForgetTenant(
        self, request: router_pb2.ForgetTenantRequest, context: Any
    ) -> router_pb2.ForgetTenantResponse:
        """Have all workers drop a tenant's cache."""
        if not request.tenant:
            raise BadRequest("name a tenant")
        num_workers, num_failed = await self._forget_tenant(request.tenant)
        return router_pb2.ForgetTenantResponse(num_workers=num_workers, num_failed=num_failed)

    async def ReportLoad(self, request: router_pb2.ReportLoadRequest, context: Any) -> router_pb2.ReportLoadResponse:
        """Keep a gateway's load for the autoscaler."""
        self._placements.gateways.add_report(GATEWAY_LOAD.from_pb(request.load), self._clock.now())
        return router_pb2.ReportLoadResponse()

    async def GetFleet(self, request: router_pb2.GetFleetRequest, context: Any) -> router_pb2.GetFleetResponse:
        """Queues and workers."""
        return FLEET.to_pb(self._placements.fleet())
