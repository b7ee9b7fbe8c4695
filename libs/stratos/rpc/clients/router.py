"""Calls to the router: placements for gateways, the fleet for the autoscaler and the command line.

``schedule`` waits in the router's queue; cancelling the call leaves the queue and drops the booking.  It and
``complete`` share one stream, see ``router_session``; a router of an older build is asked by a call of gRPC for each.
Every placement ends in ``complete``, or in the router's lease when its holder died.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from stratos.api.router.v1 import router_pb2, router_pb2_grpc
from stratos.common.clock import Clock, SystemClock
from stratos.core.fleet import Fleet
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import AttemptReport, Placement, PlacementRequest
from stratos.core.requests.convictions import ConvictionUpdate
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import PLAIN, Dialer, PeerRole
from stratos.rpc.clients.health_watch import HealthWatch
from stratos.rpc.clients.router_session import RouterSession, SessionUnknown
from stratos.rpc.codec.convictions import GATEWAY_UPDATE, ROUTER_UPDATE
from stratos.rpc.codec.fleet import FLEET, GATEWAY_LOAD
from stratos.rpc.codec.placement import ATTEMPT_REPORT, PLACEMENT, placement_request_to_part

__all__ = ["RouterClient"]

COMPLETE_TIMEOUT_S = 5.0
FLEET_TIMEOUT_S = 2.0
FORGET_TIMEOUT_S = 10.0
"""Longer than the router waits for its workers."""
SERVICE_NAME: str = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name


class RouterClient:
    """One channel to one router; open it inside a running event loop, close it with ``close`` or ``async with``."""

    def __init__(self, address: str, clock: Clock | None = None, *, dialer: Dialer = PLAIN) -> None:
        self.address = address
        self._clock = clock or SystemClock()
        self._channel = dialer.channel(address, PeerRole.ROUTER)
        self._stub = router_pb2_grpc.RouterServiceStub(self._channel)
        self._session = RouterSession(self._stub.Session, self._clock)
        self._health = HealthWatch(self._channel, SERVICE_NAME)

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        """Wait for a placement.

        Raises:
            Overloaded: the queue is full.
            QueueTimeout: no worker had room in time.
            ContextLengthExceeded: the request could never fit into a worker's KV pool.
            WorkerLost: the router is gone, or did not answer within ``timeout_s``.
        """
        call = router_pb2.SessionCall(schedule=placement_request_to_part(request, self._clock.now()))
        try:
            answer = await self._session.ask(call, timeout_s=timeout_s)
            placement = answer.schedule
        except SessionUnknown:
            async with translate_errors(peer="the router"):
                placement = await self._stub.Schedule(call.schedule, timeout=timeout_s)
        return PLACEMENT.from_pb(placement, router_address=self.address)

    async def complete(self, reports: Sequence[AttemptReport]) -> None:
        """Report how attempts ended; idempotent.

        Raises:
            WorkerLost: the router did not answer.
        """
        call = router_pb2.SessionCall(complete={"reports": [ATTEMPT_REPORT.to_part(report) for report in reports]})
        try:
            await self._session.ask(call, timeout_s=COMPLETE_TIMEOUT_S)
        except SessionUnknown:
            async with translate_errors(peer="the router"):
                await self._stub.Complete(call.complete, timeout=COMPLETE_TIMEOUT_S)

    async def is_serving(self, *, timeout_s: float) -> bool:
        """Whether the router says that it takes calls, as it last did; it tells by itself when that changes."""
        return await self._health.is_serving(timeout_s=timeout_s)

    async def exchange_convictions(self, update: ConvictionUpdate, *, timeout_s: float) -> ConvictionUpdate:
        """Tell the router what this gateway knows, and hear what others do; idempotent.

        Raises:
            WorkerLost: the router did not answer.
        """
        async with translate_errors(peer="the router"):
            answer = await self._stub.ExchangeConvictions(GATEWAY_UPDATE.to_pb(update), timeout=timeout_s)
        return ROUTER_UPDATE.from_pb(answer)

    async def forget_tenant(self, tenant: str) -> bool:
        """Have all workers drop what they cache of a tenant; false where one did not answer. Idempotent.

        Raises:
            WorkerLost: the router did not answer.
        """
        async with translate_errors(peer="the router"):
            request = router_pb2.ForgetTenantRequest(tenant=tenant)
            answer = await self._stub.ForgetTenant(request, timeout=FORGET_TIMEOUT_S)
        return bool(answer.num_workers and not answer.num_failed)

    async def report_load(self, load: GatewayLoad, *, timeout_s: float = FLEET_TIMEOUT_S) -> None:
        """Tell the router what this gateway is busy with; idempotent.

        Raises:
            WorkerLost: the router did not answer.
        """
        async with translate_errors(peer="the router"):
            request = router_pb2.ReportLoadRequest(load=GATEWAY_LOAD.to_pb(load))
            await self._stub.ReportLoad(request, timeout=timeout_s)

    async def fleet(self, *, timeout_s: float = FLEET_TIMEOUT_S) -> Fleet:
        """Queues and workers as the router sees them now."""
        async with translate_errors(peer="the router"):
            answer = await self._stub.GetFleet(router_pb2.GetFleetRequest(), timeout=timeout_s)
        return FLEET.from_pb(answer)

    async def close(self) -> None:
        """Close the channel; calls in flight are lost."""
        await self._session.close()
        await self._health.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
