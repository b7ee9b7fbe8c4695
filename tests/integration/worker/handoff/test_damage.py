"""A request whose KV may be damaged: the worker that it came from forgets the same blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.placement import WorkerRole
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.results import StepResult
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def has_forgotten(worker: Worker) -> bool:
    return not await num_cached(worker)


async def num_cached(worker: Worker) -> int:
    return await worker.process.opened.context.engine.match(tuple(PROMPT), "", b"")


async def test_the_source_forgets_what_may_be_damaged(world: World) -> None:
    source = await world.start(WorkerRole.PREFILL)
    target = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005})
    stream = await (await world.gateway(target)).submit(PROMPT, max_tokens=400, prefill=(source.ref,))
    await stream.wait_tokens(2)
    assert await num_cached(source) == 96
    root = chain_root(target.process.opened.context.engine.info.identity, "", b"")
    damaged = {RequestKey("req-1", 0): block_hashes(root, PROMPT, 16), RequestKey("gone", 0): [b"x" * 32]}
    target.process.opened.table.on_step(StepResult(step=1, damaged=damaged))
    await eventually(lambda: has_forgotten(source), "the source forgets")
    assert target.metric("stratos_kv_damaged_requests_total") == 1
