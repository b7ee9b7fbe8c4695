"""Workers with a disk: decode and prefill workers find a prefix of the process before, and take no other's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.features import Feature
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

KEY = b"k" * 32
NUM_FULL = 6
"""Full blocks of a prompt."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def prompt(kind: int) -> list[int]:
    return [(kind * 101 + 7 * i) % 4096 for i in range(100)]


async def start(world: World, role: WorkerRole, folder: Path | None = None) -> Worker:
    """A worker whose pool holds little more than two prompts."""
    disk: dict[str, Any] = {} if folder is None else {"disk_tier": {"directory": folder, "max_bytes": 1 << 20}}
    return await world.start(role, fake={"num_blocks": 16}, scheduler={"switches": {"swap_costs": False}}, **disk)


async def stop(worker: Worker) -> None:
    worker.stop.set()
    assert await worker.exit_code == 0


async def run(world: World, decode: Worker, kind: int, *prefill: Worker) -> Any:
    """The receipt of a request, whose tokens must be right wherever its KV came from."""
    gateway = await world.gateway(decode)
    sent = await gateway.submit(prompt(kind), request_id=f"r{kind}", prefill=prefill, cache_salt=b"t", kv_key=KEY)
    stream = await sent.over()
    assert stream.error is None
    num_prefilled = 99 if stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF else 0
    assert stream.tokens[0] == fake_generate(
        prompt(kind), 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT, num_prefilled=num_prefilled
    )
    await gateway.close()
    return stream.receipt


async def crowd(world: World, decode: Worker, kept: Worker, *prefill: Worker) -> None:
    """The first prompt goes to the disk of ``kept``."""
    for kind in range(5):
        await run(world, decode, kind, *prefill)

    def is_written() -> bool:
        written = kept.metric("stratos_kv_disk_moved_blocks_total", direction="out")
        return written >= NUM_FULL and not kept.process.opened.context.engine.status().disk.num_waiting

    await eventually(is_written, "blocks on disk")


async def test_a_decode_worker_finds_a_prefix_of_the_process_before(world: World, tmp_path: Path) -> None:
    decode = await start(world, WorkerRole.DECODE, tmp_path / "kv")
    gateway = await world.gateway(decode)
    assert Feature.KV_KEYS in gateway.features
    await crowd(world, decode, decode)
    await stop(decode)
    decode = await start(world, WorkerRole.DECODE, tmp_path / "kv")
    receipt = await run(world, decode, 0)
    assert receipt.num_cached_tokens == 16 * NUM_FULL
    await decode.wait_baseline()
    await eventually(
        lambda: decode.metric("stratos_kv_disk_moved_blocks_total", direction="in") == NUM_FULL, "its count"
    )


async def test_a_prefill_worker_sends_what_the_process_before_computed(world: World, tmp_path: Path) -> None:
    prefill = await start(world, WorkerRole.PREFILL, tmp_path / "kv")
    decode = await start(world, WorkerRole.DECODE)
    await crowd(world, decode, prefill, prefill)
    for worker in (decode, prefill):
        await stop(worker)
    prefill = await start(world, WorkerRole.PREFILL, tmp_path / "kv")
    decode = await start(world, WorkerRole.DECODE)
    receipt = await run(world, decode, 0, prefill)
    assert receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    await eventually(
        lambda: prefill.metric("stratos_kv_disk_moved_blocks_total", direction="in") == NUM_FULL, "its count"
    )
    await prefill.wait_baseline()


async def test_without_a_disk_no_key_is_asked_for_and_a_key_of_a_wrong_size_is_refused(
    world: World, tmp_path: Path
) -> None:
    decode = await start(world, WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    assert Feature.KV_KEYS not in gateway.features
    stream = await (await gateway.submit(prompt(0), kv_key=b"short")).over()
    assert stream.error.param == "kv_key"
