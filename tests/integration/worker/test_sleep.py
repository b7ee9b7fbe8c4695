"""Workers that sleep and wake by calls, as a router and a gateway see them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratos.api.worker.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    decode_pb2,
    embed_pb2,
    embed_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from stratos.common.errors import BadRequest, Busy, Draining, StratosError
from stratos.core.fleet import SleepState, WorkerStatus
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from stratos.routing.liveness import OutReason, WorkerLiveness
from stratos.routing.settings import LivenessConfig
from stratos.rpc.clients.channel import channel, translate_errors
from stratos.rpc.codec.fleet import WORKER_STATUS
from tests.support.paths import MODELS
from tests.support.waiting import eventually
from tests.support.worlds.terms import pop_terms_pb
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]
ALONE = fake_generate(PROMPT, 20, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def sleep(worker: Worker, timeout_ms: int = 0) -> int:
    async with channel(worker.process.address) as peer, translate_errors(peer="the worker"):
        request = worker_pb2.SleepRequest(timeout_ms=timeout_ms)
        answer = await worker_pb2_grpc.WorkerServiceStub(peer).Sleep(request)
    return int(answer.freed_bytes)


async def wake(worker: Worker) -> None:
    async with channel(worker.process.address) as peer, translate_errors(peer="the worker"):
        await worker_pb2_grpc.WorkerServiceStub(peer).Wake(worker_pb2.WakeRequest())


async def first_status(worker: Worker) -> WorkerStatus:
    async with channel(worker.process.address) as peer:
        watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=100))
        return WORKER_STATUS.from_pb(await watch.read())


def verdict(status: WorkerStatus) -> OutReason | None:
    """Of a router that has just heard it."""
    liveness = WorkerLiveness(LivenessConfig())
    liveness.on_status(status, 100.0)
    return liveness.out_reason(100.0)


@pytest.mark.parametrize("engine", ["thread", "process"])
async def test_a_stream_after_waking_is_that_of_before(world: World, engine: str) -> None:
    worker = await world.start(WorkerRole.DECODE, engine_process=engine)
    gateway = await world.gateway(worker)
    before = await (await gateway.submit(PROMPT, max_tokens=20)).over()
    assert before.tokens[0] == ALONE
    probes = worker.metric("stratos_engine_probes_total", outcome="sound")
    assert await sleep(worker) > 0
    assert await sleep(worker) > 0, "again: it sleeps"
    status = await first_status(worker)
    assert (status.sleep_state, verdict(status)) == (SleepState.ASLEEP, OutReason.ASLEEP)
    assert status.not_ready_reason, "routers of earlier versions leave it out, too"
    assert not status.is_draining
    assert not worker.process.not_ready_reason(), "the process is well"
    assert worker.metric("stratos_worker_sleep_state", state="asleep") == 1
    assert worker.metric("stratos_worker_slept_bytes") > 0
    refused = await (await gateway.submit(PROMPT, request_id="early")).over()
    assert refused.error.code == "draining"
    await asyncio.gather(wake(worker), wake(worker))
    status = await first_status(worker)
    assert (status.sleep_state, verdict(status)) == (SleepState.AWAKE, None)
    after = await (await gateway.submit(PROMPT, request_id="after", max_tokens=20)).over()
    assert after.tokens[0] == ALONE
    assert worker.metric("stratos_engine_probes_total", outcome="sound") == probes + 1, "known tokens, before clients"
    assert worker.metric("stratos_worker_sleeps_total", outcome="asleep") == 1
    assert worker.metric("stratos_worker_wake_seconds_count") == 1
    assert worker.metric("stratos_worker_sleep_state", state="awake") == 1
    await worker.wait_baseline()


async def test_running_streams_get_their_time_and_then_go_back_to_their_gateway(world: World) -> None:
    worker = await world.start(WorkerRole.DECODE, fake={"step_s": 0.01})
    gateway = await world.gateway(worker)
    short = await gateway.submit(PROMPT, request_id="short", max_tokens=20)
    long = await gateway.submit(PROMPT, request_id="long", max_tokens=3000)
    await long.wait_tokens(3)
    assert await sleep(worker, timeout_ms=800) > 0
    assert short.tokens[0] == ALONE
    assert (await long.over()).error.code == "draining", "its gateway resumes it where there is a worker, or later"
    emitted = len(long.tokens[0])
    await wake(worker)
    choices = [decode_pb2.ChoiceState(index=0, emitted_ids=long.tokens[0])]
    again = await gateway.submit(PROMPT, request_id="long", attempt=1, max_tokens=emitted + 5, choices=choices)
    whole = long.tokens[0] + (await again.over()).tokens[0][emitted:]
    length = emitted + 5
    assert whole == fake_generate(PROMPT, length, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)
    await worker.wait_baseline()


async def test_the_last_step_of_a_stream_that_was_given_back_may_take_long(world: World) -> None:
    worker = await world.start(WorkerRole.DECODE, fake={"step_s": 0.15})
    gateway = await world.gateway(worker)
    stream = await gateway.submit(PROMPT, max_tokens=50)
    await stream.wait_tokens(1)
    assert await sleep(worker) > 0
    assert (await stream.over()).error.code == "draining"
    await wake(worker)
    await worker.wait_baseline()


async def test_embedding_calls_that_take_longer_go_back_like_streams(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.5}, orphan_ttl_s=0.1)
    request = embed_pb2.EmbedRequest(
        request_id="r", pooling=embed_pb2.POOLING_LAST, model_digest="fake", terms=pop_terms_pb({})
    )
    request.inputs.extend(embed_pb2.EmbedInput(token_ids=PROMPT) for _ in range(120))
    async with channel(worker.process.address) as peer, translate_errors(peer="the worker"):
        call = embed_pb2_grpc.EmbedServiceStub(peer).Embed(request)
        await eventually(lambda: worker.process.status().engine.num_running)
        assert await sleep(worker) > 0
        with pytest.raises(Draining):
            async with translate_errors(peer="the worker"):
                await call
    await wake(worker)
    await worker.wait_baseline()


async def test_a_wake_lets_streams_run_on_that_a_sleep_waits_for(world: World) -> None:
    worker = await world.start(WorkerRole.DECODE, fake={"step_s": 0.01})
    gateway = await world.gateway(worker)
    stream = await gateway.submit(PROMPT, max_tokens=100)
    await stream.wait_tokens(3)
    sleeping = asyncio.create_task(sleep(worker, timeout_ms=60_000))
    await eventually(lambda: worker.process.status().sleep_state is SleepState.FALLING_ASLEEP)
    assert verdict(worker.process.status()) is OutReason.ASLEEP
    await wake(worker)
    with pytest.raises(Busy):
        await sleeping
    await stream.over()
    assert stream.error is None
    assert len(stream.tokens[0]) == 100


async def test_what_it_forgets_is_told_and_kv_that_it_lost_is_not_given_away(world: World) -> None:
    source = await world.start(WorkerRole.PREFILL)
    target = await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(target)
    first = await (await gateway.submit(PROMPT, prefill=(source.ref,), max_tokens=4)).over()
    assert first.receipt.num_transferred_tokens
    async with channel(source.process.address) as peer:
        stub = cache_pb2_grpc.CacheServiceStub(peer)
        watch = stub.WatchCache(cache_pb2.WatchCacheRequest())
        held = set((await watch.read()).stored)
        assert held
        await sleep(source)
        change = await watch.read()
        assert set(change.removed) == held
        assert [len(names) for names in (change.stored, change.on_host, change.on_disk)] == [0, 0, 0]
    second = await (await gateway.submit(PROMPT[::-1], request_id="second", prefill=(source.ref,))).over()
    assert second.error is None
    assert second.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    await wake(source)
    third = await (await gateway.submit(PROMPT[5:], request_id="third", prefill=(source.ref,))).over()
    expected = fake_generate(PROMPT[5:], 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT)
    assert third.tokens[0] == expected
    await source.wait_baseline()


async def test_other_files_than_it_slept_with_end_the_worker(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(MODELS / "draft" / name, folder / name)
    worker = await world.start(WorkerRole.DECODE, fake={"model_path": folder})
    await sleep(worker)
    shutil.copy(MODELS / "base" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(StratosError, match="have changed"):
        await wake(worker)
    status = worker.process.status()
    assert status.sleep_state is SleepState.FAILED
    assert verdict(status) in (OutReason.NOT_READY, OutReason.DRAINING), "it ends, and may have begun to"
    assert "could not wake" in status.not_ready_reason
    assert await worker.exit_code == 1, "whatever started it starts it again, with what is there now"


async def test_a_sleeping_worker_may_leave(world: World) -> None:
    worker = await world.start(WorkerRole.DECODE)
    with pytest.raises(BadRequest):
        await sleep(worker, timeout_ms=-1)
    await sleep(worker)
    worker.stop.set()
    assert await worker.exit_code == 0


async def test_idle_checks_leave_a_sleeping_engine_alone(world: World) -> None:
    often = {"self_check_interval_s": 0.05, "prober": {"interval_s": 0.05, "least_pass_s": 0.0}}
    worker = await world.start(WorkerRole.DECODE, **often)
    await eventually(lambda: worker.metric("stratos_engine_probes_total", outcome="sound") >= 2)
    await sleep(worker)
    step, probes = worker.process.status().engine.step, worker.metric("stratos_engine_probes_total", outcome="sound")
    read = worker.metric("stratos_weight_bytes_checked_total")
    async with channel(worker.process.address) as peer:
        watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=100))
        for _ in range(8):  # of 100 ms: several of its own intervals
            await watch.read()
    assert worker.process.status().engine.step == step
    assert worker.metric("stratos_engine_probes_total", outcome="sound") == probes
    assert worker.metric("stratos_weight_bytes_checked_total") == read
    assert not worker.process.not_ready_reason()
    await wake(worker)
    await eventually(lambda: worker.metric("stratos_engine_probes_total", outcome="sound") > probes + 1)
