"""A worker that computes something else than at its start: out, its streams handed back, and no KV given away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import FakeRunner, fake_generate
from tests.support.kv.kv_faults import Fault
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]
HALVES = {
    "known tokens": {"interval_s": 0.1, "weight_bytes_per_s": 0},
    "weights": {"interval_s": 0.0, "weight_bytes_per_s": 1 << 20, "least_pass_s": 0.0},
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def damage(worker: Worker) -> None:
    runner = worker.cores[0].runner
    assert isinstance(runner, FakeRunner)
    runner.config = replace(runner.config, worker_weight=DECODE_WEIGHT + 1)


@pytest.mark.parametrize("half", HALVES)
async def test_a_damaged_decode_worker_takes_itself_out(world: World, half: str) -> None:
    damaged = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005}, prober=HALVES[half])
    sound = await world.start(WorkerRole.DECODE, worker_id="decode-1")
    old, new = await world.gateway(damaged), await world.gateway(sound)
    stream = await old.submit(PROMPT, max_tokens=3000)
    await stream.wait_tokens(20)
    read = "stratos_weight_bytes_checked_total" if half == "weights" else "stratos_engine_probes_total"
    labels = {} if half == "weights" else {"outcome": "sound"}
    await eventually(lambda: damaged.metric(read, **labels) > 1, "a first look")
    assert not damaged.process.status().not_ready_reason
    damage(damaged)
    assert (await stream.over()).error.code == "draining"
    assert half in damaged.process.status().not_ready_reason
    assert not damaged.process.status().is_draining, "it is out, and does not leave"
    assert damaged.metric("stratos_worker_convicted") == 1
    late = await old.submit(PROMPT, request_id="late")
    assert (await late.over()).error.code == "draining"
    moved = await new.submit(PROMPT, attempt=1, max_tokens=20, prefill=(damaged.ref,))
    await moved.over()
    assert moved.receipt.num_transferred_tokens == 0
    assert moved.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    assert moved.tokens[0] == fake_generate(PROMPT, 20, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)
    assert not damaged.exit_code.done(), "it stays, to be looked at"
    await damaged.wait_baseline()


async def test_a_damaged_prefill_worker_ends_the_hand_offs_that_it_sends(world: World) -> None:
    slow = {"fake": {"step_s": 0.1}, "scheduler": {"max_num_batched_tokens": 16}}
    source = await world.start(WorkerRole.PREFILL, prober=HALVES["known tokens"], **slow)
    target = await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(target)
    prompt = [(3 * i) % 4096 for i in range(1000)]
    stream = await gateway.submit(prompt, prefill=(source.ref,))
    await eventually(lambda: source.cores[0].status().num_prefill_jobs, "its job")
    damage(source)
    await eventually(lambda: source.process.status().not_ready_reason, "its conviction")
    await stream.over()
    assert stream.error is None
    assert source.metric("stratos_kv_handoffs_total", side="source", outcome="draining") == 1
    await source.wait_baseline()


async def test_kv_that_was_computed_does_not_leave_a_prefill_worker_after_its_conviction(world: World) -> None:
    one_step = {"max_num_batched_tokens": 1024}
    source = await world.start(WorkerRole.PREFILL, prober=HALVES["known tokens"], scheduler=one_step)
    target = await world.start(WorkerRole.DECODE, transport={"staging": {"slot_bytes": 4096, "slots_per_pair": 2}})
    plan = source.inject("shm", {0: Fault.HANG})
    stream = await (await world.gateway(target)).submit([(3 * i) % 4096 for i in range(1000)], prefill=(source.ref,))
    jobs = source.process.opened.context.jobs
    await eventually(lambda: plan.injected[Fault.HANG] and not jobs.position("a later one"), "all is computed")
    damage(source)
    await eventually(lambda: source.process.status().not_ready_reason, "its conviction")
    plan.released.set()
    await stream.over()
    assert stream.error is None
    assert plan.num_frames == 1
    assert stream.receipt.num_transferred_tokens == 0, "nothing is kept of a hand-off that a conviction cut"
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
    assert source.metric("stratos_kv_handoffs_total", side="source", outcome="draining") == 1
    await source.wait_baseline()


async def test_kv_that_was_sent_before_the_conviction_is_forgotten_at_its_receiver(world: World) -> None:
    """Found by reading the weights, an hour before the next known tokens."""
    source = await world.start(WorkerRole.PREFILL, prober=HALVES["weights"] | {"interval_s": 3600.0})
    target = await world.start(WorkerRole.DECODE)
    stream = await (await world.gateway(target)).submit(PROMPT, prefill=(source.ref,), max_tokens=2)
    await stream.over()
    assert stream.receipt.num_transferred_tokens
    num_sent = target.cores[0].match(tuple(PROMPT), "", b"") // target.process.status().block_size
    assert num_sent > 0
    damage(source)
    await eventually(lambda: source.process.status().not_ready_reason, "its conviction")
    await eventually(lambda: target.metric("stratos_kv_recalled_blocks_total") == num_sent, "its recall")
    assert not target.cores[0].match(tuple(PROMPT), "", b"")
    assert not target.process.status().not_ready_reason


async def test_kv_that_a_damaged_worker_wrote_to_disk_is_not_there_for_the_process_after_it(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    damaged = await world.start(
        WorkerRole.DECODE,
        fake={"num_blocks": 16},
        scheduler={"switches": {"swap_costs": False}},
        disk_tier={"directory": folder, "max_bytes": 1 << 20},
        prober=HALVES["known tokens"],
    )
    gateway = await world.gateway(damaged)
    for kind in range(5):
        prompt = [(101 * kind + 7 * i) % 4096 for i in range(100)]
        await (await gateway.submit(prompt, request_id=f"r{kind}", cache_salt=b"t", kv_key=b"k" * 32)).over()
    await eventually(lambda: any(folder.glob("*/*/*.kv")), "blocks on disk")
    damage(damaged)
    await eventually(lambda: damaged.process.status().not_ready_reason, "its conviction")
    await eventually(lambda: not any(folder.glob("*/*/*.kv")), "an empty disk")
