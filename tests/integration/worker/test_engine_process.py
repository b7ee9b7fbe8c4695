"""A worker whose engine process is killed or hangs: which client is told what, how soon, and what is left of it.

What the engine's client itself does with the end of its process is told in ``tests/conformance/test_engine_process``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratos.api.worker.v1 import decode_pb2, worker_pb2, worker_pb2_grpc
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from stratos.rpc.clients.channel import channel
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.worker.engine_client.process import ProcessEngine
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(40)]
TOLD_WITHIN_S = 2.0
"""A dead engine is told to the gateways within tenths of a second; the rest is for a busy machine."""
STALL_S = 1.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def engine_of(worker: Worker) -> int:
    client = worker.process.opened.context.engine
    assert isinstance(client, ProcessEngine)
    return client.pid


def local(count: int, emitted: tuple[int, ...] = ()) -> list[int]:
    return fake_generate([*PROMPT, *emitted], count, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)


async def is_serving(worker: Worker) -> bool:
    async with channel(worker.process.address) as peer:
        answer = await health_pb2_grpc.HealthStub(peer).Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_killed_engine_is_told_at_once_and_its_worker_leaves(world: World, promised: Promised) -> None:
    worker = await world.start(WorkerRole.DECODE, engine_process="process", fake={"overlap": True, "step_s": 0.01})
    gateway = await world.gateway(worker)
    streams = [await gateway.submit(PROMPT, request_id=f"r{i}", max_tokens=2000) for i in range(3)]
    placing = await gateway.submit([9] * 700, request_id="long", max_tokens=2000)  # its prompt takes longer
    for stream in streams:
        await stream.wait_tokens(5)
    engine = engine_of(worker)
    with promised("streams of a killed engine end", TOLD_WITHIN_S):
        os.kill(engine, signal.SIGKILL)
        for stream in (*streams, placing):
            assert (await stream.over()).error.code == "worker_lost"
    for stream in streams:
        assert stream.tokens[0] == local(len(stream.tokens[0])), "a successor goes on from what was told"
    await eventually(worker.exit_code.done, "the process' end")
    assert worker.exit_code.result() == 1
    assert worker.process.opened.table.num_open_tasks == 0


async def test_a_hung_engine_makes_its_worker_unready_and_shows_in_every_sign_of_life(
    world: World, promised: Promised
) -> None:
    worker = await world.start(
        WorkerRole.DECODE, engine_process="process", fake={"step_s": 0.01}, step_stall_timeout_s=STALL_S
    )
    gateway = await world.gateway(worker)
    stream = await gateway.submit(PROMPT, max_tokens=2000)
    await stream.wait_tokens(5)
    assert await is_serving(worker)
    engine = engine_of(worker)
    try:
        with promised("a hung engine, its time to stand still and two looks: not ready", STALL_S + 2):
            os.kill(engine, signal.SIGSTOP)
            await eventually(lambda: worker.process.not_ready_reason(), "the hang is seen")
        await _until_serving(worker, False)
        async with channel(worker.process.address) as peer:
            status = WORKER_STATUS.from_pb(
                await worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest()).read()
            )
        assert "step counter has not moved" in status.not_ready_reason
        assert status.engine.is_computing
        before = gateway.num_progress
        await eventually(lambda: gateway.num_progress > before, "the session lives although the engine does not")
    finally:
        os.kill(engine, signal.SIGCONT)
    await _until_serving(worker, True)
    await stream.wait_tokens(50)
    assert stream.error is None, "a request that only was slow goes on"
    await gateway.cancel("req-1")


async def _until_serving(worker: Worker, wanted: bool) -> None:
    async def is_so() -> bool:
        return await is_serving(worker) is wanted

    await eventually(is_so, "it serves" if wanted else "it serves no more")


MANY_FRAMES = {"names": ["shm"], "staging": {"slot_bytes": 4096, "slots_per_pair": 4}}
LONG_PROMPT = [(7 * i) % 4096 for i in range(900)]
WEIGHTS = {"prefill_weight": PREFILL_WEIGHT, "decode_weight": DECODE_WEIGHT}


async def test_hand_offs_between_engine_processes_give_equal_tokens(world: World) -> None:
    parts = {"transport": MANY_FRAMES, "fake": {"num_blocks": 300}}  # room for three prompts at once
    source = await world.start(WorkerRole.PREFILL, engine_process="process", **parts)
    target = await world.start(WorkerRole.DECODE, engine_process="process", **parts)
    mixed = await world.start(WorkerRole.DECODE, worker_id="decode-1", **parts)
    for number, worker in enumerate((target, mixed)):
        gateway = await world.gateway(worker)
        streams = [
            await gateway.submit(LONG_PROMPT[cut:], request_id=f"r{number}-{cut}", prefill=(source,))
            for cut in (0, 1, 400)
        ]
        for cut, stream in zip((0, 1, 400), streams, strict=True):
            await stream.over()
            assert stream.error is None
            assert stream.tokens[0] == fake_generate(LONG_PROMPT[cut:], 4, **WEIGHTS)
            assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    received = target.metric("stratos_kv_transfer_bytes_total", direction="received", transport="shm")
    assert received >= 8 * 899
    for worker in (source, target, mixed):
        await worker.wait_baseline()


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_kill_in_the_middle_of_frames_leaves_nothing_and_changes_no_token(world: World, victim: str) -> None:
    slow = {"token_s": 0.005}  # a chunk of 64 tokens every 320 ms: frames are under way for as long as it computes
    source = await world.start(WorkerRole.PREFILL, engine_process="process", fake=slow, transport=MANY_FRAMES)
    target = await world.start(WorkerRole.DECODE, engine_process="process", transport=MANY_FRAMES)
    gateway = await world.gateway(target)
    stream = await gateway.submit(LONG_PROMPT, prefill=(source,))
    got = {"direction": "received", "transport": "shm"}
    await eventually(lambda: target.metric("stratos_kv_transfer_bytes_total", **got), "a first frame")
    killed, survivor = (source, target) if victim == "source" else (target, source)
    os.kill(engine_of(killed), signal.SIGKILL)
    await stream.over()
    if victim == "source":
        assert stream.error is None
        assert len(stream.tokens[0]) == 4
    else:
        assert stream.error.code == "worker_lost"
        assert stream.tokens.get(0, []) == []
    await eventually(killed.exit_code.done, "the end of its worker")
    await survivor.wait_baseline()


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_hang_in_the_middle_of_frames_ends_the_hand_off_in_bounded_time(world: World, victim: str) -> None:
    short = {"frame_timeout_s": 0.5, "receiver_timeout_s": 0.5, "stall_timeout_s": 0.5}
    parts = {"engine_process": "process", "transport": MANY_FRAMES, "handoff": short}
    source = await world.start(WorkerRole.PREFILL, fake={"token_s": 0.002}, **parts)
    target = await world.start(WorkerRole.DECODE, **parts)
    gateway = await world.gateway(target)
    stream = await gateway.submit(LONG_PROMPT, prefill=(source,))
    got = {"direction": "received", "transport": "shm"}
    await eventually(lambda: target.metric("stratos_kv_transfer_bytes_total", **got), "a first frame")
    engine = engine_of(source if victim == "source" else target)
    os.kill(engine, signal.SIGSTOP)
    try:
        await stream.over()
    finally:
        os.kill(engine, signal.SIGCONT)
    if victim == "source":
        assert stream.error is None
        assert len(stream.tokens[0]) == 4
    else:
        assert stream.error.code == "worker_lost"
    await source.wait_baseline()
    await target.wait_baseline()
