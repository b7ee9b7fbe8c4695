"""Every failure of a hand-off by name: the answer is right, the failure is counted, nothing is left."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import BadRequest, StratosError, WorkerLost
from stratos.core.kv import StagingLedger
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.engine.fake.runner import fake_generate
from tests.support.kv.kv_faults import Fault
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]
LONG_PROMPT = [(7 * i) % 4096 for i in range(900)]
"""Two frames of at most 512 tokens, for chunks of any size."""
HANDED_OVER = fake_generate(PROMPT, 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT)
COMPUTED_HERE = fake_generate(PROMPT, 4, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def start_pair(world: World, **decode_settings: object) -> tuple[Worker, Worker]:
    return await world.start(WorkerRole.PREFILL), await world.start(WorkerRole.DECODE, **decode_settings)


@pytest.mark.parametrize(
    ("faults", "is_computed_here", "num_failures"),
    [
        ({}, False, 0),
        ({99: Fault.BIT_FLIP}, False, 0),
        ({0: Fault.BIT_FLIP}, False, 1),
        ({1: Fault.BIT_FLIP}, False, 1),
        ({0: Fault.TRUNCATE}, False, 1),
        ({0: Fault.DROP}, False, 1),
        ({0: Fault.REORDER}, False, 1),
        ({0: Fault.BIT_FLIP, 1: Fault.BIT_FLIP}, True, 2),
    ],
)
async def test_damaged_frames(
    world: World, faults: dict[int, Fault], is_computed_here: bool, num_failures: int
) -> None:
    prefill, decode = await start_pair(world, transport={"staging": {"slot_bytes": 4096, "slots_per_pair": 2}})
    plan = prefill.inject("shm", faults)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(LONG_PROMPT, prefill=(prefill,))).over()
    assert stream.error is None
    weights = {"decode_weight": DECODE_WEIGHT, "prefill_weight": PREFILL_WEIGHT}
    boundary = 0 if is_computed_here else None
    assert stream.tokens[0] == fake_generate(LONG_PROMPT, 4, **weights, num_prefilled=boundary)
    assert plan.injected.total() == len([frame for frame in faults if frame < 99])
    assert decode.metric("stratos_kv_integrity_failures_total", cause="checksum") == num_failures
    assert decode.metric("stratos_local_prefills_total", reason="local_fallback") == is_computed_here
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_frame_that_never_completes(world: World) -> None:
    prefill, decode = await start_pair(world, handoff={"frame_timeout_s": 0.3})
    plan = prefill.inject("shm", {0: Fault.HANG})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == COMPUTED_HERE
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="worker_lost") == 1
    plan.released.set()
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_an_engine_that_never_connects_holds_up_neither_the_request_nor_its_workers_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = await world.start(WorkerRole.PREFILL, handoff={"receiver_timeout_s": 0.3})
    decode = await world.start(WorkerRole.DECODE)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(prefill.process.opened.context.transports.port, "connect", never)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == COMPUTED_HERE
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    await prefill.wait_baseline()
    await decode.wait_baseline()
    prefill.stop.set()
    await prefill.exit_code


async def test_a_frame_that_leaves_after_its_leg_meets_slots_that_are_not_read_any_more(world: World) -> None:
    prefill = await world.start(WorkerRole.PREFILL, handoff={"receiver_timeout_s": 0.3})
    decode = await world.start(WorkerRole.DECODE, handoff={"frame_timeout_s": 0.3})
    plan = prefill.inject("shm", {0: Fault.HANG})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == COMPUTED_HERE
    await decode.wait_baseline()
    assert decode.process.opened.context.transports.ledger() == StagingLedger(), "the pair has ended with its frame"
    plan.released.set()
    again = await (await gateway.submit(PROMPT[1:], request_id="again", prefill=(prefill,))).over()
    assert again.error is None
    await prefill.wait_baseline()
    await decode.wait_baseline()


@pytest.mark.parametrize("method", ["receive", "commit"])
@pytest.mark.parametrize("error", [BadRequest("the grammar does not allow it"), WorkerLost("the engine has stopped")])
async def test_what_the_own_engine_refuses_is_not_blamed_on_a_source(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, error: StratosError
) -> None:
    prefill, decode = await start_pair(world)
    other = await world.start(WorkerRole.PREFILL, worker_id="prefill-1")
    context = decode.process.opened.context

    async def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(context.transports.port if method == "receive" else context.engine, method, refuse)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill, other))).over()
    assert stream.error.code == error.code
    assert not any(context.peers.is_avoided(source.ref) for source in (prefill, other))
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome=error.code) == 1
    assert decode.metric("stratos_local_prefills_total", reason="local_fallback") == 0
    for worker in (prefill, other, decode):
        await worker.wait_baseline()


async def test_a_pair_that_the_source_lost_is_replaced(world: World) -> None:
    prefill, decode = await start_pair(world)
    plan = prefill.inject("shm", {0: Fault.DIE})
    gateway = await world.gateway(decode)
    first = await (await gateway.submit(PROMPT, request_id="first", prefill=(prefill,))).over()
    assert plan.injected[Fault.DIE] == 1
    assert first.tokens[0] == COMPUTED_HERE
    await decode.wait_baseline()
    decode.process.opened.context.peers.report_committed(prefill.ref)  # its breaker is not the subject here
    again = await gateway.submit(PROMPT, request_id="again", prefill=(prefill,), cache_salt=b"another tenant")
    assert (await again.over()).tokens[0] == HANDED_OVER
    await decode.wait_baseline()


async def test_a_source_of_slow_steps_is_not_taken_for_a_hung_one(world: World) -> None:
    prefill = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.6})
    decode = await world.start(WorkerRole.DECODE, handoff={"stall_timeout_s": 0.2})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == HANDED_OVER
    assert prefill.process.status().engine.slow_step_s >= 0.6


async def test_dead_endpoint_and_the_second_takes_over(world: World) -> None:
    prefill, decode = await start_pair(world)
    dead = WorkerRef(worker_id="gone", incarnation="inc-gone", address="127.0.0.1:9", role=WorkerRole.PREFILL)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(dead, prefill))).over()
    assert stream.tokens[0] == HANDED_OVER
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="worker_lost") == 1
    again = await (await gateway.submit(PROMPT[1:], prefill=(dead,), request_id="again")).over()
    assert again.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="avoided") == 1


async def test_second_source_goes_on_behind_the_verified_prefix(world: World) -> None:
    prompt = [(13 * i) % 4096 for i in range(1800)]
    blocks, small = {"num_blocks": 160}, {"staging": {"slot_bytes": 4096}}
    first = await world.start(WorkerRole.PREFILL, fake=blocks)
    second = await world.start(WorkerRole.PREFILL, worker_id="prefill-1", fake={"worker_weight": 11, **blocks})
    decode = await world.start(WorkerRole.DECODE, handoff={"frame_timeout_s": 1.0}, fake=blocks, transport=small)
    plan = first.inject("shm", {2: Fault.HANG})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(prompt, prefill=(first, second))).over()
    received = second.metric("stratos_kv_transfer_bytes_total", direction="sent", transport="shm") // 8
    verified = len(prompt) - 1 - int(received)
    assert plan.injected[Fault.HANG] == 1
    assert verified > 0, "the first source's frames were not kept"
    kv_sources = [PREFILL_WEIGHT] * verified + [11] * int(received) + [DECODE_WEIGHT]
    total = sum(w * (t + 1) + p for p, (t, w) in enumerate(zip(prompt, kv_sources, strict=True)))
    assert stream.tokens[0][0] == (total + 31 * DECODE_WEIGHT) % 4096
    assert stream.receipt.prefill_worker_id == "prefill-1"
    plan.released.set()
    for worker in (first, second, decode):
        await worker.wait_baseline()


@pytest.mark.parametrize("failure", [Fault.HANG, Fault.DIE])
async def test_what_was_verified_of_the_last_source_is_not_computed_again(world: World, failure: Fault) -> None:
    prompt = [(13 * i) % 4096 for i in range(1800)]
    blocks, small = {"num_blocks": 160}, {"staging": {"slot_bytes": 4096}}
    prefill = await world.start(WorkerRole.PREFILL, fake=blocks)
    decode = await world.start(WorkerRole.DECODE, handoff={"frame_timeout_s": 1.0}, fake=blocks, transport=small)
    plan = prefill.inject("shm", {2: failure})
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(prompt, prefill=(prefill,))).over()
    assert plan.injected[failure] == 1
    receipt = stream.receipt
    assert receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_TAIL
    assert receipt.num_transferred_tokens > 0, "the frames that came whole were not kept"
    assert receipt.num_cached_tokens == 0, "what was sent is not billed as cached"
    assert receipt.num_transferred_tokens + receipt.num_recomputed_tokens == len(prompt)
    weights = {"decode_weight": DECODE_WEIGHT, "prefill_weight": PREFILL_WEIGHT}
    kept = receipt.num_transferred_tokens
    assert stream.tokens[0] == fake_generate(prompt, 4, **weights, num_prefilled=kept)
    assert decode.metric("stratos_local_prefills_total", reason="local_tail") == 1
    assert decode.metric("stratos_local_prefills_total", reason="local_fallback") == 0
    plan.released.set()
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_identity_mismatch_is_not_paired(world: World) -> None:
    prefill, decode = await start_pair(world)
    engine = prefill.process.opened.context.engine
    other = dataclasses.replace(engine.info.identity, numerics_id="another instruction set")
    engine.info = dataclasses.replace(engine.info, identity=other)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] == COMPUTED_HERE
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="identity_mismatch") == 1


async def test_workers_that_promise_no_bits_pair_with_other_numerics(world: World) -> None:
    prefill, decode = await start_pair(world)
    for worker, numerics in ((prefill, "cuda-H100/f/a.r1+batched"), (decode, "cuda-H200/f/a.r2+batched")):
        engine = worker.process.opened.context.engine
        identity = dataclasses.replace(engine.info.identity, numerics_id=numerics)
        engine.info = dataclasses.replace(engine.info, identity=identity)
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.tokens[0] != COMPUTED_HERE
    assert stream.receipt.prefill_worker_id == "prefill-0"
    assert stream.receipt.numerics_id.endswith("+batched"), "which marks the receipt inexact"


async def test_no_room_is_busy_and_takes_nothing(world: World) -> None:
    prefill, decode = await start_pair(world, fake={"num_blocks": 13, "step_s": 0.04})
    gateway = await world.gateway(decode)
    long = await gateway.submit(PROMPT, prefill=(prefill,), max_tokens=60, request_id="long")
    await long.wait_tokens(1)
    stream = await (await gateway.submit(PROMPT[::-1], prefill=(prefill,), request_id="late")).over()
    assert stream.error.code == "busy"
    assert (await long.over()).finish[0] == decode_pb2.FINISH_REASON_LENGTH
    await prefill.wait_baseline()
    await decode.wait_baseline()


PHASES: dict[str, Callable[[Worker, Worker], bool]] = {
    "at once": lambda p, d: d.process.opened.table.num_open_tasks == 1,
    "queued": lambda p, d: p.process.opened.context.engine.status().num_prefill_jobs == 1,
    "granted": lambda p, d: d.blocks.reserved > 0,
    "receiving": lambda p, d: d.metric("stratos_kv_transfer_bytes_total", direction="received", transport="shm") > 0,
}


@pytest.mark.parametrize("phase", PHASES)
async def test_cancel_in_each_phase_frees_both_workers(world: World, promised: Promised, phase: str) -> None:
    patient = dict.fromkeys(("frame_timeout_s", "stall_timeout_s", "slot_wait_s", "receiver_timeout_s"), 60.0)
    prefill = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.03}, handoff=patient)
    decode = await world.start(WorkerRole.DECODE, handoff=patient)
    prompt = [(7 * i) % 4096 for i in range(900)]
    gateway = await world.gateway(decode)
    stream = await gateway.submit(prompt, prefill=(prefill,))
    await eventually(lambda: PHASES[phase](prefill, decode), phase)
    await gateway.cancel("req-1")
    with promised("a cancelled request is gone from both workers", 2.0):
        await eventually(lambda: not decode.process.opened.table.num_open_tasks, "the request's end")
        await prefill.wait_baseline()
        await decode.wait_baseline()
    assert not stream.tokens
    assert stream.error is None


async def test_cancel_that_a_slow_source_hears_late_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    prefill = await world.start(WorkerRole.PREFILL, lambda fake: dataclasses.replace(fake, step_s=2.0))
    decode = await world.start(WorkerRole.DECODE, handoff={"abort_timeout_s": 0.1})
    gateway = await world.gateway(decode)
    await gateway.submit(PROMPT, prefill=(prefill,))
    await eventually(lambda: prefill.process.opened.context.engine.status().num_running, "it computes")
    await gateway.cancel("req-1")
    await eventually(lambda: not decode.process.status().num_handoffs, "the receiver has waited long enough")
    assert prefill.process.opened.context.engine.status().num_prefill_jobs, "the source was in time: this shows nothing"
    await prefill.wait_baseline()
    await decode.wait_baseline()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_cancel_while_decoding(world: World) -> None:
    prefill, decode = await start_pair(world, fake={"step_s": 0.005})
    gateway = await world.gateway(decode)
    stream = await gateway.submit(PROMPT, prefill=(prefill,), max_tokens=500)
    await stream.wait_tokens(3)
    await gateway.cancel("req-1")
    await decode.wait_baseline()
    assert 3 <= len(stream.tokens[0]) < 500


async def test_source_that_drains_refuses_new_hand_offs(world: World) -> None:
    prefill, decode = await start_pair(world)
    prefill.process.refuse_new_work()
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,))).over()
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="draining") == 1
