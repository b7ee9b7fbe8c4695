"""Background responses at two gateways: computed without a client, found, followed, ended and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.common.errors import Overloaded
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import TEXT, code_of, contents, num_submits, read, stream_worlds

PATH = "/v1/responses"
BODY = {"model": "base", "input": "go", "max_output_tokens": 60, "background": True}
OVER = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path) as found:
        yield found


async def call(world: AdminWorld, method: str, path: str, *, by: str = "user", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys[by]}", **more.pop("headers", {})}
    return await world.public.request(method, path, headers=headers, **more)


async def begin(world: AdminWorld, **more: Any) -> dict[str, Any]:
    answer = await call(world, "POST", PATH, json={**BODY, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def ended(world: AdminWorld, response_id: str) -> dict[str, Any]:
    async def is_over() -> bool:
        return (await call(world, "GET", f"{PATH}/{response_id}")).json()["status"] in OVER

    await eventually(is_over, "the response has ended")
    return dict((await call(world, "GET", f"{PATH}/{response_id}")).json())


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def test_it_is_polled_at_any_gateway_and_billed_once(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    begun = await begin(one)
    assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
    found = await ended(two, begun["id"])
    assert (found["status"], text_of(found)) == ("completed", TEXT)
    assert found == await ended(one, begun["id"])
    assert num_submits(worlds) == 1

    async def is_billed() -> bool:
        rows = (await call(one, "GET", "/v1/usage")).json()["data"]
        return [(row["requests"], row["output_tokens"]) for row in rows] == [(1, found["usage"]["output_tokens"])]

    await eventually(is_billed, "one request of all its tokens is billed")


async def test_its_log_probabilities_are_kept(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    [text] = (await ended(two, (await begin(one, **asked))["id"]))["output"][0]["content"]
    plain = await call(one, "POST", PATH, json={**BODY, **asked, "background": False})
    assert text == plain.json()["output"][0]["content"][0]
    assert len(text["logprobs"]) > 10


async def test_its_stream_goes_on_behind_any_event_at_any_gateway(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.step_s = two.worker.step_s = 0.01
    begun = await read(one, "POST", PATH, {**BODY, "stream": True}, most=4)
    at = f"{PATH}/resp_{begun.stream[5:29]}"
    rest = await read(two, "GET", f"{at}?stream=true&starting_after=3")
    whole = await read(one, "GET", f"{at}?stream=true")
    assert contents(begun, rest) == contents(whole)
    last = len(whole.events) - 1
    assert (await read(two, "GET", f"{at}?stream=true&starting_after={last}")).status == 204
    assert code_of(await read(two, "GET", f"{at}?stream=true&starting_after={last + 1}")) == (400, "invalid_cursor")
    for wrong in ("x", "-1", "9" * 30):
        assert code_of(await read(two, "GET", f"{at}?stream=true&starting_after={wrong}")) == (400, "invalid_cursor")
    assert num_submits(worlds) == 1


async def test_it_goes_on_where_its_gateway_stood_still(redis_url: str, tmp_path: Path) -> None:
    """The first gateway writes less often than its lease lasts; the other takes no new ones before."""
    async with stream_worlds(redis_url, tmp_path, first={"flush_s": 3.0}) as [one, two]:
        one.worker.hang_after = 4
        begun = await begin(one, temperature=1.0)
        await eventually(lambda: bool(one.worker.submits or two.worker.submits), "it runs")
        found = await ended(two, begun["id"])
        assert (found["status"], text_of(found)) == ("completed", TEXT)
        assert {submit.request_id for world in (one, two) for submit in world.worker.submits} == {
            two.worker.submits[0].request_id
        }


async def test_it_is_cancelled_at_another_gateway(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.hang_after = two.worker.hang_after = 4
    begun = await begin(one)

    async def has_text() -> bool:
        shown = (await call(two, "GET", f"{PATH}/{begun['id']}")).json()
        return bool(shown["status"] == "in_progress" and shown["output"])

    await eventually(has_text, "some of it is written")
    cancelled = (await call(two, "POST", f"{PATH}/{begun['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert text_of(cancelled)
    assert TEXT.startswith(text_of(cancelled))
    await eventually(lambda: bool(one.worker.cancels or two.worker.cancels), "the work ends")
    assert (await ended(one, begun["id"]))["status"] == "cancelled"
    assert (await call(one, "POST", f"{PATH}/{begun['id']}/cancel")).json()["status"] == "cancelled"


async def test_one_that_is_deleted_while_it_runs_ends_and_does_not_come_back(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.hang_after = two.worker.hang_after = 4
    at = f"{PATH}/{(await begin(one, store=True))['id']}"
    await eventually(lambda: bool(num_submits(worlds)), "it runs")
    assert (await call(two, "DELETE", at)).json()["deleted"]
    await eventually(lambda: bool(one.worker.cancels or two.worker.cancels), "the work ends")
    assert (await call(one, "GET", at)).status_code == 410


async def test_it_belongs_to_its_tenant_and_its_key_to_its_body(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    headers = {"idempotency-key": "mine"}
    first, again = [await call(world, "POST", PATH, json=BODY, headers=headers) for world in worlds]
    assert first.json()["id"] == again.json()["id"]
    at = f"{PATH}/{first.json()['id']}"
    for method, path in (("GET", at), ("POST", f"{at}/cancel"), ("DELETE", at), ("GET", f"{at}?stream=true")):
        assert (await call(two, method, path, by="stranger")).status_code == 404, path
    other = await call(two, "POST", PATH, json={**BODY, "input": "other"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    await ended(one, first.json()["id"])
    assert (await call(two, "DELETE", at)).json()["deleted"]
    gone = await call(one, "GET", at)
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "stream_gone")
    assert num_submits(worlds) == 1


async def test_one_that_is_stored_goes_on_later(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    begun = await begin(one, store=True)
    found = await ended(two, begun["id"])
    again = await call(two, "POST", PATH, json={**BODY, "background": False, "previous_response_id": found["id"]})
    assert again.status_code == 200, again.text


async def test_what_cannot_be_kept_is_refused_by_name(redis_url: str, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"store": False}, "store"),
        ({"background": "yes"}, "background"),
        ({"user": "x" * 5000}, "background"),
    ]
    async with stream_worlds(redis_url, tmp_path, num=1, first={"max_body_bytes": 4096}) as [world]:
        for more, param in refused:
            answer = await call(world, "POST", PATH, json={**BODY, **more})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_tenant_has_so_many_at_a_time(redis_url: str, tmp_path: Path) -> None:
    first = {"background_queued": 2, "background_running": 0}
    async with stream_worlds(redis_url, tmp_path, num=1, first=first) as [world]:
        begun = [await begin(world) for _ in range(2)]
        answer = await call(world, "POST", PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "concurrency_limit")
        assert (await call(world, "POST", PATH, json=BODY, by="stranger")).status_code == 200
        shown = (await call(world, "GET", f"{PATH}/{begun[0]['id']}")).json()
        assert shown["status"] == "queued"
        ends = asyncio.gather(*(call(world, "POST", f"{PATH}/{one['id']}/cancel") for one in begun))
        assert [answer.json()["status"] for answer in await ends] == ["cancelled"] * 2
        assert (await call(world, "POST", PATH, json=BODY)).status_code == 200


async def test_the_refusal_of_its_model_is_told_where_it_is_looked_for(worlds: list[AdminWorld]) -> None:
    """A key that is revoked before its response was computed."""
    one, two = worlds
    one.worker.hang_after = two.worker.hang_after = 0
    begun = await begin(one)
    await eventually(lambda: bool(num_submits(worlds)), "it runs")
    key_id = one.keys["user"].split("-")[1]
    assert (await one.call("DELETE", f"/keys/{key_id}")).status_code in (200, 204)

    async def has_failed() -> bool:
        found = await call(two, "GET", f"{PATH}/{begun['id']}", by="owner")
        return bool(found.json()["status"] == "failed" and "invalid_api_key" in found.json()["error"]["message"])

    await eventually(has_failed, "it failed")


async def test_what_waits_too_long_has_failed(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, first={"background_s": 0.3}) as [world]:
        world.router.errors = [Overloaded("full")] * 100
        found = await ended(world, (await begin(world))["id"])
        assert found["status"] == "failed"
        assert "overloaded" in found["error"]["message"]


async def test_a_gateway_that_leaves_gives_it_up_at_once(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, first={"lease_s": 600.0}) as [one, two]:
        one.worker.hang_after = 4
        while not one.worker.submits:
            begun = await begin(one)
            await eventually(lambda: bool(num_submits([one, two])), "it runs at one of them")
        one.service.begin_leave()
        await one.service.drain()
        found = await ended(two, begun["id"])
        assert text_of(found) == TEXT
