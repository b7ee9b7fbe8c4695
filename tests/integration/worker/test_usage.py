"""A decode worker tells what ended requests took, keeps it until it is acknowledged, and hands it on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.placement import WorkerRole
from stratos.rpc.codec.usage import METER_TAG
from tests.support.waiting import eventually
from tests.support.worlds.usage_counts import TAG
from tests.support.worlds.worker_world import World, open_world

PROMPT = [(7 * i) % 4096 for i in range(40)]
METER = METER_TAG.to_pb(TAG)
USAGE = {"claim_after_s": 0.2, "offer_interval_s": 0.3}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def test_a_finished_request_is_counted_until_it_is_acknowledged(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.002}, usage=USAGE)
    gateway = await world.gateway(decode)
    await (await gateway.submit(PROMPT, max_tokens=7, meter=METER, tenant="acme")).over()
    await (await gateway.submit(PROMPT, request_id="free")).over()
    await eventually(lambda: bool(gateway.counts), "a count")
    (count,) = gateway.counts
    assert (count.key.request_id, count.tenant, count.tag) == ("req-1", "acme", TAG)
    assert (count.num_prompt_tokens, count.num_output_tokens) == (40, 7)
    assert count.device_ns > 7 * 0.002e9 * 0.9
    assert count.decode_ns > 0
    usage = decode.process.opened.table.usage
    assert len(usage) == 1
    await gateway.acknowledge("req-1")
    await eventually(lambda: len(usage) == 0, "the count is forgotten")


async def test_a_prompt_of_a_prefill_worker_counts_both_devices(world: World) -> None:
    prefill = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.05})
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.001}, usage=USAGE)
    gateway = await world.gateway(decode)
    await (await gateway.submit(PROMPT, max_tokens=2, prefill=(prefill,), meter=METER, tenant="acme")).over()
    await eventually(lambda: bool(gateway.counts), "a count")
    assert 0.05e9 * 0.9 < gateway.counts[0].device_ns < 60e9
    tenant_ns = sum(worker.process.opened.device_time.by_tenant["acme"] for worker in (prefill, decode))
    assert gateway.counts[0].device_ns == pytest.approx(tenant_ns, rel=0.001)


async def test_another_gateway_gets_what_a_dead_one_left(world: World) -> None:
    """Of a request that had finished, and of one that ran on as an orphan until it was freed."""
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005}, usage=USAGE, orphan_ttl_s=0.3)
    dying, second = await world.gateway(decode), await world.gateway(decode)
    await (await dying.submit(PROMPT, request_id="done", meter=METER)).over()
    running = await dying.submit(PROMPT, request_id="open", max_tokens=2000, meter=METER)
    await running.wait_tokens(3)
    dying.call.cancel()
    await eventually(lambda: {c.key.request_id for c in second.counts} == {"done", "open"}, "both counts")
    by_id = {count.key.request_id: count for count in second.counts}
    assert by_id["done"].num_output_tokens == 4
    assert len(running.tokens[0]) <= by_id["open"].num_output_tokens < 2000
    await eventually(lambda: len(second.counts) > 2, "an offer that is made again")
    await second.acknowledge("done", "open")
    await eventually(lambda: len(decode.process.opened.table.usage) == 0, "nothing is left")


async def test_a_resumed_attempt_counts_what_came_before_it_and_charges_no_more_for_the_prompt(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, usage=USAGE)
    gateway = await world.gateway(decode)
    choices = [
        decode_pb2.ChoiceState(index=0, emitted_ids=[5, 6, 7]),
        decode_pb2.ChoiceState(index=1, emitted_ids=[8], finished=True),
    ]
    meter = decode_pb2.MeterTag(num_cached_tokens=32)
    await (await gateway.submit(PROMPT, attempt=2, max_tokens=5, choices=choices, meter=meter)).over()
    await eventually(lambda: bool(gateway.counts), "a count")
    assert (gateway.counts[0].num_cached_tokens, gateway.counts[0].num_output_tokens) == (32, 5 + 1)


async def test_a_cancelled_request_is_counted_as_far_as_it_came(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005}, usage=USAGE)
    gateway = await world.gateway(decode)
    stream = await gateway.submit(PROMPT, max_tokens=2000, meter=METER)
    await stream.wait_tokens(3)
    await gateway.cancel("req-1")
    await eventually(lambda: bool(gateway.counts), "a count")
    assert len(stream.tokens[0]) <= gateway.counts[0].num_output_tokens < 2000
