"""What runs ends, too, once its tenant, its key, its model or its adapter is suspended, revoked or blocked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.values import adapter_id, encode_adapter
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import make_adapter, say

BODY = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 2000}


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path) as found:
        found.worker.script, found.worker.step_s = say("a b c d e f g h " * 150), 0.02
        async with open_redis(redis_url) as redis:
            adapter = make_adapter("tuned", tenant="acme")
            writer = RecordWriter(RecordStore(redis), actor="test")
            await writer.change(Kind.ADAPTER, adapter_id("acme", "tuned"), "test", lambda _: encode_adapter(adapter))
        yield found


class Streams:
    """Answers that run side by side."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.tasks: list[asyncio.Task[httpx.Response]] = []
        self.num_streams = self.num_begun = 0
        """Those that stream, and those of them of which a client has read something."""

    def start(self, *, by: str = "user", **body: Any) -> None:
        self.num_streams += "stream" in body
        self.tasks.append(asyncio.create_task(self._ask(self.world.keys[by], BODY | body)))

    async def _ask(self, key: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        async with self.world.public.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            self.num_begun += "stream" in body
            await answer.aread()
        return answer

    async def run(self) -> None:
        """Wait until a worker has all of them, and some tokens are out."""
        wanted = len(self.tasks)
        await eventually(lambda: len(self.world.worker.running) >= wanted, "all run")
        await eventually(lambda: self.num_begun == self.num_streams, "all streams have begun")

    async def ended(self) -> Sequence[tuple[int, str]]:
        """Status and error code of each, the event's code where it is a stream."""
        answers = await asyncio.gather(*self.tasks)
        self.tasks.clear()
        return [(answer.status_code, _code(answer.text)) for answer in answers]

    async def cancel(self) -> None:
        """Their clients leave."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def _code(text: str) -> str:
    last = text.strip().splitlines()[-1].removeprefix("data: ")
    return str(json.loads(last).get("error", {}).get("code", "")) if last.startswith("{") else last


USER = "/keys/{user}/suspend"
MODEL = {"model": "base"}
CASES: list[tuple[str, Any, str, int]] = [
    ("/tenants/acme/suspend", {}, "permission_denied", 403),
    (USER, {}, "invalid_api_key", 401),
    ("/blocks", {"adapter": "tuned", "tenant": "acme"}, "permission_denied", 403),
    ("/blocks", MODEL, "permission_denied", 403),
]


@pytest.mark.parametrize(("path", "body", "code", "status"), CASES)
async def test_what_runs_ends_within_a_second_with_the_code_of_a_new_request(
    world: AdminWorld, promised: Promised, path: str, body: Any, code: str, status: int
) -> None:
    streams, others = Streams(world), Streams(world)
    streams.start(model="tuned", stream=True)
    streams.start(model="tuned")
    others.start(by="stranger")
    others.start(by="owner" if path in (USER, "/blocks") else "stranger")  # the same tenant, another key and model
    await streams.run()
    await others.run()
    answer = await world.call("POST", path.format(user=world.keys["user"].split("-")[1]), body)
    assert answer.status_code == 200
    with promised("streams of what is suspended end", 1.0):
        assert await streams.ended() == [(200, code), (status, code)]
    if body is MODEL:
        assert await others.ended() == [(403, code)] * 2
    assert not any(task.done() for task in others.tasks), "the others run on"
    await others.cancel()
    await eventually(lambda: not world.worker.running, "workers are told")
    assert (world.service.metrics.get_sample_value("stratos_requests_ended_by_refusal_total") or 0) >= 2


async def test_what_waits_for_a_place_ends_too_and_a_deleted_tenant_ends_all(
    world: AdminWorld, promised: Promised
) -> None:
    placed, waiting = Streams(world), Streams(world)
    placed.start(stream=True)
    await placed.run()
    world.router.workers.clear()
    waiting.start(stream=True)
    waiting.start(by="owner")
    await eventually(lambda: len(world.router.requests) == 3, "all wait")
    with promised("streams of a deleted tenant end, placed and waiting", 1.5):
        assert (await world.call("DELETE", "/tenants/acme")).status_code == 200
        assert await placed.ended() == [(200, "invalid_api_key")]
        assert await waiting.ended() == [(401, "invalid_api_key")] * 2
