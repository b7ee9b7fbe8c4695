"""Slow receivers and slow sources: they cost nobody else anything, and no worker that is sound is avoided for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.clock import SystemClock
from stratos.common.ids import new_id
from stratos.core.adapter import AdapterRef
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from stratos.kv_transfer.port.slot_queue import SlotQueue
from stratos.rpc.clients.dialer import PLAIN
from stratos.worker.handoff.records import Intent
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.streams import FetchStream
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]
HANDED_OVER = fake_generate(PROMPT, 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT)
COMPUTED_HERE = fake_generate(PROMPT, 4, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)
ADAPTER = AdapterRef(digest="a" * 64, uri="adapters/a")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


class StoppedReceiver:
    """A decode worker that was stopped: its Fetch streams are open and answer nothing."""

    def __init__(self, worker: Worker, source: Worker) -> None:
        context = worker.process.opened.context
        self._receiver = dataclasses.replace(worker.ref, incarnation="inc-stopped")
        self._context, self._source = context, source
        self._peers = SourcePeers(context.transports, SlotQueue(1.0), SystemClock(), PLAIN)
        self.streams: list[FetchStream] = []

    async def fetch(self, prompt: list[int]) -> None:
        info = self._context.engine.info
        intent = Intent(
            handoff_id="handoff-stopped",
            request_id=new_id("gen"),
            attempt=0,
            leg=new_id("leg"),
            token_ids=tuple(prompt),
            compute=True,
            identity=info.identity,
            geometry=info.geometry,
            receiver=self._receiver,
            transports=self._context.transports.names,
            capabilities=self._context.transports.capabilities.facts,
        )
        stream = self._peers.open_fetch(self._source.ref)
        await stream.send(intent)
        self.streams.append(stream)

    async def close(self) -> None:
        for stream in self.streams:
            stream.cancel()
        await self._peers.close()


async def test_a_stopped_receiver_with_eight_open_fetches_leaves_the_source_to_another(world: World) -> None:
    prefill = await world.start(WorkerRole.PREFILL, handoff={"grant_wait_s": 0.2}, fake={"num_blocks": 40})
    decode = await world.start(WorkerRole.DECODE)
    stopped, gateway = StoppedReceiver(decode, prefill), await world.gateway(decode)
    engine = prefill.process.opened.context.engine
    for index in range(8):
        await stopped.fetch([(13 * i + index) % 4096 for i in range(280)])
    await eventually(lambda: engine.status().num_prefill_jobs == 8, "eight fetches are open")
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == HANDED_OVER, "its blocks were with the stopped one, whose jobs are parked"
    await eventually(lambda: engine.status().num_prefill_jobs == 8, "the others wait on")
    await stopped.close()
    await prefill.wait_baseline()


async def test_a_late_grant_finds_its_job_in_its_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = await world.start(WorkerRole.PREFILL, handoff={"grant_wait_s": 0.05})
    decode = await world.start(WorkerRole.DECODE)
    source, target = prefill.process.opened.context.engine, decode.process.opened.context.engine
    reserve, parked, park = target.reserve, asyncio.Event(), source.park

    async def note(leg: str) -> None:
        await park(leg)
        parked.set()

    async def late(request):  # type: ignore[no-untyped-def]
        await parked.wait()
        assert prefill.blocks.allocated == 0, "a parked job holds nothing"
        return await reserve(request)

    monkeypatch.setattr(source, "park", note)
    monkeypatch.setattr(target, "reserve", late)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == HANDED_OVER
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="committed") == 1
    for worker in (prefill, decode):
        await worker.wait_baseline()


@pytest.mark.parametrize("what", ["Grant", "Credit"])
async def test_a_slow_receiver_costs_its_leg_and_neither_breaker_nor_pair(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    limits = {"grant_wait_s": 0.05, "receiver_timeout_s": 0.2}
    prefill = await world.start(WorkerRole.PREFILL, handoff=limits)
    small = {"staging": {"slot_bytes": 4096}}
    decode = await world.start(WorkerRole.DECODE, transport=small, handoff={"num_slots": 1})
    context, is_over = decode.process.opened.context, asyncio.Event()
    place, name = (context.engine, "reserve") if what == "Grant" else (context.transports.port, "receive")
    original = getattr(place, name)

    async def late(*arguments: object) -> object:
        await is_over.wait()
        return await original(*arguments)

    monkeypatch.setattr(place, name, late)
    gateway = await world.gateway(decode)
    prompt = [(7 * i) % 4096 for i in range(900)]
    stream = await gateway.submit(prompt, prefill=(prefill,))
    source = prefill.process.opened.context
    await eventually(lambda: len(source.jobs) == 1, "the source works")
    await eventually(lambda: not source.jobs, "the source gives the leg up")
    is_over.set()
    assert (await stream.over()).error is None
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="receiver_slow") == 1
    assert not context.peers.is_avoided(prefill.ref)
    again = await (await gateway.submit(PROMPT, prefill=(prefill,), request_id="again", cache_salt=b"other")).over()
    assert again.tokens[0] == HANDED_OVER
    for worker in (prefill, decode):
        await worker.wait_baseline()


async def test_prompts_for_a_cold_adapter_take_nothing_at_the_source(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = await world.start(WorkerRole.PREFILL)
    decode = await world.start(WorkerRole.DECODE)
    arrives, adapters = asyncio.Event(), decode.process.opened.context.adapters

    async def slow_fetch(adapter: AdapterRef, stack: AsyncExitStack) -> None:
        await arrives.wait()

    async def hold(adapter: AdapterRef, stack: AsyncExitStack) -> None:
        """Of both workers: it is near by now."""

    monkeypatch.setattr(adapters, "have_near", slow_fetch)
    for worker in (prefill, decode):
        monkeypatch.setattr(worker.process.opened.context.adapters, "hold", hold)
    gateway = await world.gateway(decode)
    fields = {"adapter_digest": ADAPTER.digest, "adapter_uri": ADAPTER.uri}
    cold = [
        await gateway.submit(PROMPT[index:], prefill=(prefill,), request_id=f"cold-{index}", **fields)
        for index in range(4)
    ]
    await eventually(lambda: decode.process.opened.table.num_open_tasks == 4, "four prompts wait for the adapter")
    other = await (await gateway.submit(PROMPT, prefill=(prefill,), request_id="other")).over()
    assert other.tokens[0] == HANDED_OVER
    source = prefill.process.opened.context
    held = "only the other one was there, and has ended"
    await eventually(lambda: (len(source.jobs), prefill.process.status().num_handoffs) == (0, 0), held)
    arrives.set()
    for stream in cold:
        await stream.over()


async def test_a_long_queue_at_the_sources_is_left_for_this_worker(world: World) -> None:
    prefill = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.05})
    decode = await world.start(WorkerRole.DECODE, handoff={"spill_wait_s": 0.1, "spill_ratio": 1.5})
    gateway = await world.gateway(decode)
    first = await (await gateway.submit(PROMPT, prefill=(prefill,), request_id="measures")).over()
    assert first.tokens[0] == HANDED_OVER
    stopped = StoppedReceiver(decode, prefill)
    jobs = prefill.process.opened.context.jobs
    for index in range(3):
        await stopped.fetch([(13 * i + index) % 4096 for i in range(900)])
    await eventually(lambda: len(jobs) == 3, "a queue")
    prompt = PROMPT[::-1]
    stream = await (await gateway.submit(prompt, prefill=(prefill,), request_id="spills")).over()
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_SPILL
    assert stream.tokens[0] == fake_generate(prompt, 4, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)
    assert decode.metric("stratos_local_prefills_total", reason="local_spill") == 1
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="source_slow") == 1
    assert not decode.process.opened.context.peers.is_avoided(prefill.ref)
    await stopped.close()
    await prefill.wait_baseline()


async def test_a_worker_that_computes_nothing_gives_what_it_has_and_is_not_avoided(world: World) -> None:
    holder = await world.start(WorkerRole.DECODE, worker_id="decode-1", fake={"worker_weight": 11})
    prefill = await world.start(WorkerRole.PREFILL)
    decode = await world.start(WorkerRole.DECODE)
    first = await world.gateway(holder)
    await (await first.submit(PROMPT[:70], request_id="leaves")).over()
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(holder, prefill))).over()
    sources = [11] * 64 + [PREFILL_WEIGHT] * 35 + [DECODE_WEIGHT]
    total = sum(w * (t + 1) + p for p, (t, w) in enumerate(zip(PROMPT, sources, strict=True)))
    assert stream.tokens[0][0] == (total + 31 * DECODE_WEIGHT) % 4096
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="part") == 1
    assert not decode.process.opened.context.peers.is_avoided(holder.ref)
    tail = await (await gateway.submit(PROMPT[:66], prefill=(holder,), request_id="tail", cache_salt=b"none")).over()
    assert tail.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK, "it has nothing of that tenant"
    for worker in (holder, prefill, decode):
        await worker.wait_baseline()
