"""The router as a service: puts its parts together and names its root tasks."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Any

import grpc.aio

from stratos.api.router.v1 import router_pb2, router_pb2_grpc
from stratos.common.clock import Clock
from stratos.core.placement import WorkerRole
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import Dispatcher
from stratos.routing.fleet_state import FleetState
from stratos.routing.liveness import OutReason
from stratos.rpc.clients.dialer import ANY_WORKER
from stratos.rpc.clients.name_lookup import Resolve
from stratos.rpc.serving.service import Service
from stratos_router.cache_follower import CacheFollower
from stratos_router.discovery import open_discovery
from stratos_router.forgetting import TenantForgetting
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.servicer import RouterServicer
from stratos_router.settings import RouterSettings
from stratos_router.watcher import Watcher


def make_dispatcher(settings: RouterSettings, metrics: RouterMetrics, rng: Random) -> Dispatcher:
    """The rules of one router over an empty fleet, whose evictions are counted."""

    def count_eviction(role: WorkerRole, reason: OutReason) -> None:
        metrics.evictions.labels(role, reason.value).inc()

    fleet = FleetState(settings.liveness, BookingLedger(settings.bookings), count_eviction)
    return Dispatcher(fleet, settings.dispatch, rng)


class RouterApp(Service):
    """One router process.

    Args:
        settings: of the process.
        clock: of all waits and leases.
        rng: jitter and ties.
        resolve: looks up the names of ``dns://``; the system's resolver if absent.
    """

    name = "router"

    def __init__(self, settings: RouterSettings, clock: Clock, rng: Random, resolve: Resolve | None = None) -> None:
        self._clock = clock
        metrics = RouterMetrics(self.metrics)
        self._discovery = open_discovery(settings.discovery, clock, resolve)
        dispatcher = make_dispatcher(settings, metrics, rng)
        self._placements = PlacementLoop(dispatcher, metrics, clock)
        caches = CacheFollower(dispatcher.policies.index, metrics, settings.redial_after_s, self._connect)
        self._forgetting = TenantForgetting(dispatcher.fleet.addresses, self._connect)
        self._watcher = Watcher(self._discovery, self._placements, settings, clock, caches, self._connect)
        self._servicer: RouterServicer | None = None

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        self._servicer = RouterServicer(self._placements, self._clock, self.tracing, self._forgetting.forget_tenant)
        router_pb2_grpc.add_RouterServiceServicer_to_server(self._servicer, server)
        return [router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name]

    def _connect(self, address: str) -> grpc.aio.Channel:
        return self.dialer.channel(address, ANY_WORKER)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Follow the workers, place requests."""
        return {"watcher": self._watcher.run(), "scheduler": self._placements.run()}

    def not_ready_reason(self) -> str:
        """A router without workers is ready: requests wait in it. One that never saw a worker list is not."""
        return self._discovery.problem

    async def drain(self) -> None:
        """Callers that wait are sent elsewhere; placements that were made need no router."""
        self._placements.drain()
        if self._servicer is not None:
            await self._servicer.close_sessions()
