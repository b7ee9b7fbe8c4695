"""Placements of embeddings: prefill workers alone, a queue of their own, nothing learnt about output lengths."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import QueueTimeout
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import Outcome, PlacementRequest, Work, WorkerRef, WorkerRole
from stratos.planning.observation import observe
from stratos.planning.settings import PoolKey
from stratos.routing.fleet_state import Member
from stratos.rpc.codec.fleet import FLEET
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings
from tests.support.worlds.fleet_samples import make_load, with_free_slots
from tests.support.worlds.terms import with_terms

IDENTITY = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n")
BLOCKS = BlockLedger(total=1000, free=1000, cached=0, allocated=0, reserved=0, fenced=0)


class World:
    """A scheduler over workers that are set by hand; ``turn`` lets it place what it can."""

    def __init__(self, *names: str) -> None:
        self.clock = FakeClock()
        settings = RouterSettings(discovery="static://decode@a:1", admission={"max_waiting_per_worker": 0})
        metrics = RouterMetrics(CollectorRegistry())
        dispatcher = make_dispatcher(settings, metrics, Random(1))
        self.fleet = dispatcher.fleet
        self.scheduler = PlacementLoop(dispatcher, metrics, self.clock)
        self.fleet.set_members([Member(name, f"{name}:1", WorkerRole(name.partition("-")[0])) for name in names])
        for name in names:
            self.status(name)

    def status(self, name: str, **changes: Any) -> None:
        ref = WorkerRef(worker_id=name, incarnation=name, address="", role=WorkerRole(name.partition("-")[0]))
        status = WorkerStatus(ref=ref, engine=make_load(blocks=BLOCKS), identity=IDENTITY, max_num_seqs=4)
        self.fleet.on_status(name, with_free_slots(status, changes), self.clock.now())

    async def call(self, work: Work = Work.EMBEDDING, **changes: Any) -> asyncio.Task[Any]:
        max_tokens = 0 if work is Work.EMBEDDING else 32
        request = PlacementRequest(
            request_id="r", model_digest="m", num_prompt_tokens=64, max_output_tokens_total=max_tokens, work=work
        )
        task = asyncio.create_task(self.scheduler.schedule(with_terms(request, **changes)))
        await asyncio.sleep(0)
        return task

    async def turn(self) -> None:
        self.clock.advance(0.01)
        self.scheduler.turn(self.clock.now())
        for _ in range(3):
            await asyncio.sleep(0)


async def test_an_embedding_goes_to_a_prefill_worker_and_to_no_decode_worker() -> None:
    world = World("decode-0", "prefill-0", "prefill-1")
    calls = [await world.call(request_id=str(i), num_choices=2) for i in range(5)]
    await world.turn()
    placements = [call.result() for call in calls if call.done()]
    assert Counter(p.worker.worker_id for p in placements) == {"prefill-0": 2, "prefill-1": 2}
    assert all(p.decode is None and len(p.prefill) == 1 for p in placements)
    world.scheduler.complete(placements[0].handoff_id, Outcome.FINISHED, 0)
    await world.turn()
    assert calls[-1].result().worker == placements[0].worker


async def test_waiting_embeddings_do_not_hold_up_generations_nor_the_other_way_round() -> None:
    world = World("decode-0", "prefill-0")
    world.status("prefill-0", num_running=4)
    blocked = await world.call(num_choices=4, waited_ms=20_000)
    generation = await world.call(Work.GENERATION)
    await world.turn()
    assert generation.result().decode.worker_id == "decode-0"
    assert not blocked.done()
    world.status("prefill-0")
    world.status("decode-0", num_running=4)
    waiting = await world.call(Work.GENERATION, waited_ms=20_000)
    await world.turn()
    assert blocked.result().worker.worker_id == "prefill-0"
    assert not waiting.done()
    waiting.cancel()


async def test_queues_tell_what_they_wait_for_and_decode_workers_are_not_scaled_for_embeddings() -> None:
    world = World("decode-0", "prefill-0")
    world.status("prefill-0", num_running=4)
    call = await world.call(num_choices=3)
    await world.turn()
    fleet = FLEET.from_pb(FLEET.to_pb(world.scheduler.fleet()))
    assert [(q.work, q.num_requests) for q in fleet.queues] == [(Work.EMBEDDING, 1)]
    assert observe(fleet, PoolKey(role=WorkerRole.DECODE)).queue_depth == 0
    assert observe(fleet, PoolKey(role=WorkerRole.PREFILL)).queue_depth == 1
    call.cancel()


async def test_without_a_prefill_worker_the_caller_learns_why() -> None:
    world = World("decode-0")
    call = await world.call(deadline_s=world.clock.now() + 0.005)
    world.clock.advance(1)
    await world.turn()
    with pytest.raises(QueueTimeout, match="no prefill worker is known"):
        await call


async def test_an_excluded_worker_is_not_chosen_again() -> None:
    world = World("prefill-0", "prefill-1")
    call = await world.call(excluded_incarnations=frozenset({"prefill-0"}))
    await world.turn()
    assert call.result().worker.worker_id == "prefill-1"


async def test_a_group_larger_than_the_batch_runs_beside_steady_work() -> None:
    world = World("prefill-0")
    world.status("prefill-0", num_running=3)
    group, next_group = await world.call(num_choices=32), await world.call(num_choices=32)
    await world.turn()
    assert group.result().worker.worker_id == "prefill-0"
    assert not next_group.done()
    next_group.cancel()
