"""Calls about what is kept: a tenant that asks too often hears when to come again, and holds up nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import RateLimited
from stratos.core.tenant import Tenant
from stratos_gateway.access.call_rate import LIST_CALLS, read_rate
from stratos_gateway.access.settings import RequestsConfig
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.batch_calls import call
from tests.support.worlds.stream_world import stream_worlds

ACME = Tenant(name="acme", id="tn_acme")
SINGLE = (
    ("GET", "/v1/requests/none/receipt"),
    ("GET", "/v1/batches/batch_none"),
    ("POST", "/v1/batches/batch_none/cancel"),
    ("GET", "/v1/files/file-none"),
    ("GET", "/v1/files/file-none/content"),
    ("DELETE", "/v1/files/file-none"),
    ("GET", "/v1/streams/strm_none"),
    ("POST", "/v1/streams/strm_none/cancel"),
    ("GET", "/v1/responses/resp_none"),
    ("GET", "/v1/responses/resp_none/input_items"),
    ("POST", "/v1/responses/resp_none/cancel"),
    ("DELETE", "/v1/responses/resp_none"),
)
LISTS = ("/v1/batches", "/v1/files")


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    """A gateway whose tenants may ask 6 times a minute, or for one list at once."""
    async with stream_worlds(redis_url, tmp_path, num=1, requests={"reads_per_min": 6}) as [found]:
        yield found


async def statuses(world: AdminWorld, num: int, method: str, path: str, by: str = "user") -> list[int]:
    answers = await asyncio.gather(*(call(world, method, path, by=by) for _ in range(num)))
    return sorted(answer.status_code for answer in answers)


async def emptied(world: AdminWorld) -> httpx.Response:
    """Ask until the rate is used up; the refusal."""
    while (answer := await call(world, "GET", LISTS[0])).status_code == 200:
        pass
    return answer


async def test_every_route_of_what_is_kept_counts(world: AdminWorld) -> None:
    for method, path in (*SINGLE, *(("GET", path) for path in LISTS)):
        refused = await emptied(world)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert 0 < int(refused.headers["retry-after-ms"]) <= 100_000, "until a list has room"
        assert refused.headers["x-should-retry"] == "true"
        assert 429 in await statuses(world, LIST_CALLS + 5, method, path), path


async def test_one_who_asks_too_often_holds_up_nothing_else(world: AdminWorld) -> None:
    await emptied(world)
    asked = {"model": "base", "prompt": "go", "max_tokens": 2}
    answer = await call(world, "POST", "/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    assert (await call(world, "GET", "/v1/models")).status_code == 200
    assert await statuses(world, 1, "GET", LISTS[0], by="stranger") == [200]
    assert await statuses(world, 50, "GET", LISTS[1], by="admin") == [200] * 50


def test_progress_bars_of_many_batches_never_meet_it() -> None:
    """A look a second for each of 90, for an hour, and a list now and then."""
    clock = FakeClock()
    pay = read_rate(clock, RequestsConfig().reads_per_min)
    for second in range(3600):
        for _ in range(90):
            pay(ACME, 1)
        if second % 10 == 0:
            pay(ACME, LIST_CALLS)
        clock.advance(1.0)


def test_a_rate_has_room_for_a_list_and_says_when_there_is_some_again() -> None:
    clock = FakeClock()
    pay = read_rate(clock, 1)
    pay(ACME, LIST_CALLS)
    with pytest.raises(RateLimited) as refused:
        pay(ACME, 1)
    assert refused.value.after_s == pytest.approx(60.0)
    pay(Tenant(name="other", id="tn_other"), 1)
    clock.advance(60.0)
    pay(ACME, 1)
