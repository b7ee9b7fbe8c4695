"""Requests of every kind cancelled at random moments, over both kinds of engine: nothing is left of them anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.placement import WorkerRole
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.paths import BASE_MODEL
from tests.support.reference.adapter_folders import write_adapter
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import Gateway, Worker, World, open_world

NUM_REQUESTS = 90
NUM_PATTERNS = 12


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(("kind", "overlap"), [("thread", False), ("thread", True), ("process", True)])
async def test_nothing_is_left_of_cancelled_requests(world: World, tmp_path: Path, kind: str, overlap: bool) -> None:
    adapters = [write_adapter(tmp_path / "store" / name, fill=fill) for fill, name in enumerate("abc", 1)]
    common: dict[str, Any] = {
        "engine_process": kind,
        "object_store": {"url": f"file://{tmp_path / 'store'}"},
        "scheduler": {"max_num_seqs": 6},
    }
    fake: dict[str, Any] = {"overlap": overlap, "model_path": BASE_MODEL, "step_s": 0.002}
    prefill = await world.start(WorkerRole.PREFILL, fake=fake, **common)
    decode = await world.start(WorkerRole.DECODE, fake={**fake, "num_host_blocks": 64}, **common)
    gateway = await world.gateway(decode)
    draw = random.Random(overlap + len(kind))
    writing = asyncio.Lock()  # a stream takes one message at a time
    await asyncio.gather(*(_one(gateway, writing, prefill, draw, number, adapters) for number in range(NUM_REQUESTS)))
    streams = list(gateway.streams.values())
    assert {stream.error.code for stream in streams if stream.error is not None} <= {"busy"}
    assert any(stream.tokens for stream in streams), "some were cancelled while they ran"
    for worker in (decode, prefill):
        await worker.wait_baseline()
        await eventually(lambda worker=worker: _is_idle(worker), "the step that took the last of them out is over")
        _assert_no_pins(worker)
    last = await gateway.submit([5] * 40, request_id="last", prefill=(prefill,), model_digest=_digest(decode))
    assert (await last.over()).error is None


def _is_idle(worker: Worker) -> bool:
    status = worker.process.opened.context.engine.status()
    return (status.num_running, status.num_waiting, status.is_computing) == (0, 0, False)


def _digest(worker: Worker) -> str:
    return str(worker.process.opened.context.engine.info.identity.model_digest)


def _assert_no_pins(worker: Worker) -> None:
    client = worker.process.opened.context.engine
    if isinstance(client, ThreadEngine):
        assert not client.inspect().adapter_pins


async def _one(
    gateway: Gateway, writing: asyncio.Lock, prefill: Worker, draw: random.Random, number: int, adapters: list[Path]
) -> None:
    """Submit a request of some kind, and cancel some choices or all of it a moment later."""
    fields: dict[str, Any] = {"request_id": f"r{number}", "model_digest": _digest(prefill)}
    if draw.random() < 0.6:
        fields["prefill"] = (prefill,)
    if draw.random() < 0.5:
        folder = draw.choice(adapters)
        fields |= {"adapter_digest": read_adapter_files(folder).digest, "adapter_uri": folder.name}
    if draw.random() < 0.3:
        pattern = f"[a-z]{{{20 + draw.randrange(NUM_PATTERNS)}}}"
        fields["sampling"] = {"grammar": decode_pb2.Grammar(kind="regex", text=pattern)}
    num_choices = draw.randrange(1, 4)
    fields["choices"] = [decode_pb2.ChoiceState(index=i) for i in range(num_choices)]
    prompt = [(number * 7 + i) % 4000 + 10 for i in range(draw.randrange(2, 120))]
    await asyncio.sleep(draw.random() * 0.8)
    async with writing:
        await gateway.submit(prompt, max_tokens=200, **fields)
    await asyncio.sleep(draw.choice([0.0, 0.002, 0.01, 0.03, 0.15]) * draw.random())
    if draw.random() < 0.4:
        async with writing:
            await gateway.cancel(f"r{number}", indexes=(draw.randrange(num_choices),))
        await asyncio.sleep(draw.random() * 0.01)
    async with writing:
        await gateway.cancel(f"r{number}")
