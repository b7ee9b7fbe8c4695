"""A stream that is taken over while its worker still runs it: the worker goes on, and nothing is computed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from stratos.common.errors import DependencyDown
from stratos.core.placement import WorkerRole
from stratos.core.requests.records import RequestKey
from stratos.engine.fake.runner import FakeRunner
from stratos.store.sealed.stream_store import StreamStore
from tests.support.reference.shipped_model import base_digest
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, code_of, contents, read, stream_worlds
from tests.support.worlds.worker_world import Worker, World, open_world

PATHS = ("/v1/completions", "/v1/chat/completions")
COMMON = {"model": "base", "stream": True, "temperature": 1.0, "seed": 5, "ignore_eos": True}


SLOW_S = 0.3
"""Of a step, so that no stream ends before it is taken over: it would take a minute and a half."""


def body_of(path: str, **more: Any) -> dict[str, Any]:
    return {**COMMON, **ASKED[path], "max_tokens": 300, **more}


@asynccontextmanager
async def two_gateways(
    redis_url: str, folder: Path, attach_s: float = LIMIT_S
) -> AsyncIterator[tuple[World, Worker, list[AdminWorld]]]:
    """Both place everything at one worker with an engine, whose steps take a while."""
    streams = {"attach_s": attach_s}
    async with open_world(folder) as world, stream_worlds(redis_url, folder, streams=streams) as gateways:
        worker = await start(world)
        for gateway in gateways:
            place_at(gateway, worker)
        yield world, worker, gateways


async def start(world: World, **more: Any) -> Worker:
    fake = {"model_digest": base_digest(), "step_s": SLOW_S}
    return await world.start(WorkerRole.DECODE, fake=fake, orphan_ttl_s=LIMIT_S, **more)


def place_at(gateway: AdminWorld, worker: Worker) -> None:
    gateway.router.workers = cast("Any", [worker])  # all that it says of one is its name


def hurry(worker: Worker) -> None:
    """Let its steps take no time from now on."""
    runner = worker.cores[0].runner
    assert isinstance(runner, FakeRunner)
    runner.config = replace(runner.config, step_s=0.0)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Cut the gateway that writes first off from its store once a block of its stream is there, or join it again."""
    write, first, is_cut = StreamStore.write, list[StreamStore](), [False]

    async def written(store: StreamStore, *asked: Any) -> Any:
        if asked[0] and not first:
            first.append(store)
        if is_cut[0] and store is first[0]:
            raise DependencyDown("Redis does not answer")
        return await write(store, *asked)

    monkeypatch.setattr(StreamStore, "write", written)

    def set_cut(now: bool) -> None:
        assert first, "a block is written"
        is_cut[0] = now

    return set_cut


def count_of(gateway: AdminWorld, name: str, **labels: str) -> float:
    found = gateway.service.metrics.restricted_registry([name]).collect()
    return sum(s.value for f in found for s in f.samples if (s.name, s.labels) == (name, labels))


def num_recomputed(gateway: AdminWorld) -> float:
    return count_of(gateway, "stratos_prompt_tokens_by_source_total", source="recomputed")


def num_attached(gateway: AdminWorld) -> float:
    return count_of(gateway, "stratos_stream_records_total", event="attached")


async def begun(gateway: AdminWorld, path: str, body: dict[str, Any], name: str) -> tuple[asyncio.Task[Read], Read]:
    """A client that stays, and what another one of the same stream had when it left."""
    task = asyncio.create_task(read(gateway, "POST", path, body, idempotency_key=name))
    await eventually(lambda: gateway.router.requests, "the stream is the first one's")
    return task, await read(gateway, "POST", path, body, most=4, idempotency_key=name)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2])
async def test_two_gateways_that_own_a_stream_have_one_worker_and_one_output(
    redis_url: str, tmp_path: Path, cut: Callable[[bool], None], path: str, n: int
) -> None:
    """The first one lives, cut off from Redis: it is fenced off at the worker, whatever it says when it is back."""
    async with two_gateways(redis_url, tmp_path) as (_, worker, [one, two]):
        body = body_of(path, n=n)
        stays, left = await begun(one, path, body, "taken")
        cut(True)
        taken = asyncio.create_task(read(two, "POST", path, body, idempotency_key="taken", last_event_id=left.last_id))
        await eventually(lambda: num_attached(two) == 1, "the other one goes on with it")
        hurry(worker)
        rest = await taken
        assert (two.router.requests, num_recomputed(two)) == ([], 0), "no worker was asked to compute it again"
        cut(False)
        ended = await stays
        assert code_of(Read(200, ended.headers, ended.events[-1:])) == (200, "stream_moved")
        whole = [contents(await read(two, "POST", path, body, idempotency_key=name)) for name in ("taken", "other")]
        assert [contents(left, rest)] * 2 == whole
        assert (len(two.router.requests), num_recomputed(two) > 0) == (1, True), "the other one was placed here"
        await worker.wait_baseline()


@pytest.mark.parametrize("lack", ["off", "missed", "gone"])
async def test_what_cannot_be_gone_on_with_is_computed_again(
    redis_url: str, tmp_path: Path, cut: Callable[[bool], None], lack: str
) -> None:
    """It is off, or the worker has given the request up, or is gone."""
    path, body = PATHS[0], body_of(PATHS[0])
    async with two_gateways(redis_url, tmp_path, 0 if lack == "off" else LIMIT_S) as (world, worker, [one, two]):
        stays, left = await begun(one, path, body, "taken")
        cut(True)
        if lack == "missed":
            worker.process.opened.table.cancel(RequestKey(one.router.requests[0].request_id, 0))
        elif lack == "gone":
            other = await start(world, worker_id="decode-1")
            place_at(two, other)
            hurry(other)
            worker.stop.set()
            await worker.exit_code
        taken = asyncio.create_task(read(two, "POST", path, body, idempotency_key="taken", last_event_id=left.last_id))
        await eventually(lambda: two.router.requests, "it is placed once more")
        hurry(worker)
        rest = await taken
        assert (num_attached(two), len(two.router.requests)) == (0, 1)
        assert contents(left, rest) == contents(await read(two, "POST", path, body, idempotency_key="other"))
        cut(False)
        ended = await stays
        last = ended.events[-1:]  # all tokens, where it had them before it heard of the new owner
        assert last[0].data == "[DONE]" or code_of(Read(200, ended.headers, last)) == (200, "stream_moved")
