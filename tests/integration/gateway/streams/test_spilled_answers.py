"""Answers whose records lie in the object store, for their clients: the same, or a clear word why not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, code_of, contents, num_submits, read, stream_worlds, texts

PATH = "/v1/completions"


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """All that is written moves at once."""
    moved = {"spill_after_s": 0.01, "spill_poll_s": 0.02}
    async with stream_worlds(redis_url, tmp_path, streams=moved) as found:
        yield found


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as client:
        yield client


def body(path: str) -> dict[str, object]:
    return {"model": "base", "stream": True, "seed": 5, **ASKED[path]}


async def moved(redis: Redis, stream: str) -> None:
    """The request of a stream lies in Redis no more, nor does its first block."""

    async def is_moved() -> bool:
        [key] = [key async for key in redis.scan_iter("stratos:streams:*", _type="hash") if ":frames" not in key]
        return not any(await redis.hmget(key, [f"{stream}/h", f"{stream}/0"]))

    await eventually(is_moved, "the record has moved")


async def test_answers_of_all_dialects_come_again_and_go_on_at_another_gateway(
    worlds: list[AdminWorld], redis: Redis
) -> None:
    one, two = worlds
    for path in ASKED:
        first = await read(one, "POST", path, body(path), idempotency_key=f"whole {path}")
        await moved(redis, first.stream)
        again = await read(two, "POST", path, body(path), idempotency_key=f"whole {path}")
        assert (again.status, texts(again), [e.id for e in again.events]) == (
            200, texts(first), [e.id for e in first.events]
        )  # fmt: skip
        one.worker.step_s = 0.02
        begun = await read(one, "POST", path, body(path), most=8, idempotency_key=f"cut {path}")
        assert begun.status == 200, begun.events
        one.worker.step_s = 0.0
        await moved(redis, begun.stream)
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        assert contents(begun, rest) == contents(first), path


async def test_what_the_store_does_not_give_is_refused_and_not_computed_again(
    worlds: list[AdminWorld], redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 while it is away, 410 once it has lost it; neither costs a second generation."""
    one, two = worlds
    first = await read(one, "POST", PATH, body(PATH), idempotency_key="whole")
    await moved(redis, first.stream)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read", AsyncMock(side_effect=DependencyDown("away")))
        assert code_of(await read(two, "POST", PATH, body(PATH), idempotency_key="whole"))[0] == 503
        assert code_of(await read(two, "GET", f"/v1/streams/{first.stream}"))[0] == 503
    again = await read(two, "POST", PATH, body(PATH), idempotency_key="whole")
    assert texts(again) == texts(first)
    shutil.rmtree(tmp_path / "blobs/streams")
    assert code_of(await read(two, "POST", PATH, body(PATH), idempotency_key="whole")) == (410, "stream_gone")
    assert code_of(await read(two, "GET", f"/v1/streams/{first.stream}")) == (410, "stream_gone")
    assert num_submits(worlds) == 1
