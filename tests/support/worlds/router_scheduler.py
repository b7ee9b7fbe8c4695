"""A router's scheduler without sockets, over workers that are set by hand."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import PlacementRequest, WorkerRef, WorkerRole
from stratos.routing.fleet_state import Member
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings
from tests.support.worlds.fleet_samples import make_load, with_free_slots
from tests.support.worlds.terms import with_terms

IDENTITY = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n")
BLOCKS = BlockLedger(total=1000, free=1000, cached=0, allocated=0, reserved=0, fenced=0)


class RouterScheduler:
    """``turn`` lets it place what it can."""

    def __init__(self, *names: str, **changes: Any) -> None:
        self.clock = FakeClock()
        settings = RouterSettings(discovery="static://decode@a:1", admission={"max_waiting_per_worker": 0}, **changes)
        self.registry = CollectorRegistry()
        metrics = RouterMetrics(self.registry)
        dispatcher = make_dispatcher(settings, metrics, Random(1))
        self.fleet, self.bookings = dispatcher.fleet, dispatcher.fleet.bookings
        self.scheduler = PlacementLoop(dispatcher, metrics, self.clock)
        self.fleet.set_members([Member(name, f"{name}:1", WorkerRole(name.partition("-")[0])) for name in names])
        for name in names:
            self.status(name)

    def made_status(self, name: str, incarnation: str = "", **changes: Any) -> WorkerStatus:
        role = WorkerRole(name.partition("-")[0])
        ref = WorkerRef(worker_id=name, incarnation=incarnation or name, address="", role=role)
        status = WorkerStatus(ref=ref, engine=make_load(blocks=BLOCKS), identity=IDENTITY, max_num_seqs=2)
        return with_free_slots(status, changes)

    def status(self, name: str, incarnation: str = "", **changes: Any) -> None:
        self.fleet.on_status(name, self.made_status(name, incarnation, **changes), self.clock.now())

    def request(self, **changes: Any) -> PlacementRequest:
        request = PlacementRequest(request_id="r", model_digest="m", num_prompt_tokens=64, max_output_tokens_total=32)
        return with_terms(request, **changes)

    async def call(self, **changes: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(self.scheduler.schedule(self.request(**changes)))
        await asyncio.sleep(0)
        return task

    async def turn(self, seconds: float = 0.01) -> None:
        self.clock.advance(seconds)
        self.scheduler.turn(self.clock.now())
        for _ in range(3):
            await asyncio.sleep(0)
