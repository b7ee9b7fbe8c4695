"""Hand-offs whose KV never leaves the device: packed, copied into the receiver's ring, unpacked there."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from tests.support.fakes.device_runner import use_devices, use_host_memory
from tests.support.kv.kv_faults import Fault
from tests.support.kv.segment_memory import SegmentMemory
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(300)]
NAMES = {"names": ["cuda_ipc", "shm", "gloo"]}


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentMemory:
    return use_devices(monkeypatch, tmp_path / "device")


@pytest.fixture
async def world(tmp_path: Path, device: SegmentMemory) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened
    gc.collect()
    assert (device.num_allocations, device.freed_too_early) == (0, [])


async def start(world: World, engine_program: str = "") -> tuple[Worker, Worker]:
    small = NAMES | {"staging": {"slot_bytes": 4096, "slots_per_pair": 4}}
    workers = [
        await world.start(role, engine_program=engine_program, transport=small)
        for role in (WorkerRole.PREFILL, WorkerRole.DECODE)
    ]
    return workers[0], workers[1]


def expected(count: int, num_prefilled: int | None = None, prompt: list[int] = PROMPT) -> list[int]:
    return fake_generate(
        prompt, count, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT, num_prefilled=num_prefilled
    )


@pytest.mark.parametrize("faults", [{}, {0: Fault.BIT_FLIP}, {0: Fault.DROP}, {0: Fault.TRUNCATE}])
async def test_kv_goes_from_device_to_device_and_damage_is_healed(world: World, faults: dict[int, Fault]) -> None:
    prefill, decode = await start(world)
    plan = prefill.inject("cuda_ipc", faults)
    stream = await (await (await world.gateway(decode)).submit(PROMPT, prefill=(prefill,), max_tokens=4)).over()
    assert stream.error is None
    assert stream.tokens[0] == expected(4)
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    assert plan.injected.total() == len(faults)
    failures = decode.metric("stratos_kv_integrity_failures_total", cause="checksum")
    assert failures == len(faults)
    assert prefill.metric("stratos_kv_transfer_bytes_total", direction="sent", transport="cuda_ipc") >= 8 * 299
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_engines_in_processes_of_their_own_hand_kv_from_device_to_device(
    world: World, device: SegmentMemory
) -> None:
    prefill, decode = await start(world, "tests.support.fakes.device_runner")
    stream = await (await (await world.gateway(decode)).submit(PROMPT, prefill=(prefill,), max_tokens=4)).over()
    assert stream.error is None
    assert stream.tokens[0] == expected(4)
    assert stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
    assert prefill.metric("stratos_kv_transfer_bytes_total", direction="sent", transport="cuda_ipc") >= 8 * 299
    assert device.num_allocations == 1
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_a_worker_on_another_device_is_reached_in_another_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await start(world)
    transports = prefill.process.opened.context.transports
    facts = replace(transports.capabilities.facts, device="GPU-of-another-host", host="another-boot")
    transports.capabilities = replace(transports.capabilities, facts=facts)
    stream = await (await (await world.gateway(decode)).submit(PROMPT, prefill=(prefill,), max_tokens=2)).over()
    assert stream.error is not None or stream.tokens[0] == expected(2, num_prefilled=0)
    assert prefill.metric("stratos_kv_transfer_bytes_total", direction="sent", transport="cuda_ipc") == 0


@pytest.mark.parametrize(("call", "at_start"), [("export", True), ("export", False), ("attach", False)])
async def test_a_device_without_ipc_is_reached_by_the_next_transport(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str, at_start: bool
) -> None:
    """What a worker's start cannot find out costs one prompt, which is computed here."""

    def fail(*_: object) -> None:
        raise RuntimeError("no IPC on this system")

    def sent(transport: str) -> float:
        return prefill.metric("stratos_kv_transfer_bytes_total", direction="sent", transport=transport)

    use_host_memory(monkeypatch)
    if at_start:
        monkeypatch.setattr(SegmentMemory, call, fail)
    prefill, decode = await start(world)
    monkeypatch.setattr(SegmentMemory, call, fail)
    gateway = await world.gateway(decode)
    for prompt, is_known in ((PROMPT, at_start), (PROMPT[::-1], True)):
        stream = await (await gateway.submit(prompt, prefill=(prefill,), max_tokens=2)).over()
        assert stream.error is None
        assert stream.tokens[0] == expected(2, num_prefilled=None if is_known else 0, prompt=prompt)
        path = "HANDOFF" if is_known else "LOCAL_FALLBACK"
        assert stream.receipt.prefill_path == getattr(decode_pb2, f"PREFILL_PATH_{path}")
        assert (sent("cuda_ipc"), sent("shm") > 0) == (0, is_known)
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_hand_offs_that_began_before_their_transport_failed_are_computed_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sources have chosen it already."""

    def fail(*_: object) -> None:
        raise RuntimeError("no IPC on this system")

    use_host_memory(monkeypatch)
    prefill, decode = await start(world)
    monkeypatch.setattr(SegmentMemory, "export", fail)
    gateway = await world.gateway(decode)
    prompts = [[(k + token) % 4096 for token in PROMPT] for k in range(3)]  # as many as the pool holds at once
    streams = [
        await gateway.submit(prompt, request_id=f"r{k}", prefill=(prefill,), max_tokens=2)
        for k, prompt in enumerate(prompts)
    ]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert (await stream.over()).error is None
        is_handed_over = stream.receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF
        assert stream.tokens[0] == expected(2, num_prefilled=None if is_handed_over else 0, prompt=prompt)
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_a_prefill_worker_that_ends_gives_its_memory_back(world: World, device: SegmentMemory) -> None:
    prefill, decode = await start(world)
    stream = await (await (await world.gateway(decode)).submit(PROMPT, prefill=(prefill,), max_tokens=2)).over()
    assert stream.tokens[0] == expected(2)
    assert device.num_allocations == 1
    prefill.stop.set()
    await prefill.exit_code

    def is_free() -> bool:
        gc.collect()
        return device.num_allocations == 0

    await eventually(is_free, "the ring of a source that has ended")
