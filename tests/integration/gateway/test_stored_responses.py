"""Kept responses over two gateways: gone on from, shown, listed, deleted; and what happens while the store is away."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from stratos.rpc.clients.gateway import fetch_snapshot
from stratos.store.redis import open_redis
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.servers.plain_http import plain_openai
from tests.support.servers.planted_text import open_places
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import say

PLANTED_PROMPT, PLANTED_ANSWER = "zebracorn ledger of the north", "quixotic plover"
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "utc"}}\n</tool_call>'
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}


def settings(folder: Path, **responses: Any) -> dict[str, Any]:
    return {
        "platform_key": "22" * 32,
        "snapshot": {"poll_s": 0.02},
        "object_store": {"url": f"file://{folder / 'objects'}"},
        "responses": {"inline_bytes": 0, "sweep_s": 0.05, **responses},
    }


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """Two gateways of one installation, each with a worker of its own; every response goes to the object store."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in "ab":
            world = await stack.enter_async_context(admin_world(redis_url, tmp_path, **settings(tmp_path)))
            world.worker.script = say(PLANTED_ANSWER)
            found.append(world)
        for world in found:
            await eventually(lambda world=world: has_data_key(world), "the tenant has a data key")
        yield found


async def has_data_key(world: AdminWorld) -> bool:
    return (await snapshot_of(world)).count('"data_key"') >= 2


async def has_no_limit(world: AdminWorld) -> bool:
    return '"requests_per_min":null' in (await snapshot_of(world)).replace(" ", "")


async def snapshot_of(world: AdminWorld) -> str:
    """What the gateway knows of tenants and keys."""
    return (await fetch_snapshot(world.service.address)).decode().replace("\\", "")


def client_of(world: AdminWorld, by: str = "user") -> AsyncOpenAI:
    return plain_openai(f"http://{world.service.http_address}", world.keys[by], LIMIT_S)


async def ask(client: AsyncOpenAI, text: Any = PLANTED_PROMPT, **more: Any) -> Any:
    return await client.responses.create(model="base", input=text, **{"max_output_tokens": 200, "store": True, **more})


def prompt_of(world: AdminWorld) -> str:
    return shipped_tokenizer().decode(list(world.worker.submits[-1].prompt_ids), skip_special=False)


def objects(folder: Path) -> list[Path]:
    return [path for path in (folder / "objects" / "responses").rglob("*") if path.is_file()]


async def test_any_gateway_goes_on_from_a_response(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    async with client_of(one) as first, client_of(two) as second:
        response = await ask(first, instructions="Be brief.")
        assert response.model_dump()["store"] is True
        later = await ask(second, "And then?", previous_response_id=response.id)
        assert later.previous_response_id == response.id
        prompt = prompt_of(two)
        places = [prompt.index(text) for text in (PLANTED_PROMPT, PLANTED_ANSWER, "And then?")]
        assert places == sorted(places)
        assert "Be brief." not in prompt, "instructions are not carried over"
        last = await ask(first, "More?", previous_response_id=later.id)
        assert all(text in prompt_of(one) for text in (PLANTED_PROMPT, "And then?", "More?"))
        shown = await second.responses.retrieve(last.id)
        assert shown.model_dump() == last.model_dump()


async def test_a_call_and_its_result_go_on_over_the_store(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.script = say(CALL)
    async with client_of(one) as first, client_of(two) as second:
        response = await ask(first, tools=[NOW])
        [call] = response.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
        answer = await ask(second, [result], tools=[NOW], previous_response_id=response.id)
        assert answer.output_text == PLANTED_ANSWER
        assert CALL in prompt_of(two)
        assert "<tool_response>\nnoon\n</tool_response>" in prompt_of(two)


async def test_a_call_of_what_no_function_is_named_goes_on_over_the_store(worlds: list[AdminWorld]) -> None:
    worlds[0].worker.script = say(CALL.replace("now", "clock.now now"))
    async with client_of(worlds[0]) as first, client_of(worlds[1]) as second:
        asked = await ask(first, tools=[NOW])
        assert [item.name for item in asked.output] == ["clock.now now"]
        answer = await ask(second, "There is none.", previous_response_id=asked.id, tools=[NOW])
        assert answer.output_text == PLANTED_ANSWER


async def test_a_stream_is_kept_before_its_last_event(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    async with client_of(one) as first, client_of(two) as second:
        async for event in await ask(first, stream=True):
            if event.type == "response.completed":
                shown = await second.responses.retrieve(event.response.id)
                assert shown.model_dump() == event.response.model_dump()
                break
        else:
            pytest.fail("the stream has no end")


async def test_input_items_come_in_pages(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    items = [{"role": "user", "content": f"number {n}"} for n in range(5)]
    async with client_of(one) as first, client_of(two) as second:
        response = await ask(first, items)
        listed = [item async for item in second.responses.input_items.list(response.id, order="asc", limit=2)]
        assert [item.content[0].text for item in listed] == [f"number {n}" for n in range(5)]  # type: ignore[union-attr]
        assert len({item.id for item in listed}) == 5
        page = await second.responses.input_items.list(response.id, limit=2)
        assert [item.id for item in page.data] == [listed[4].id, listed[3].id]
        later = await ask(first, "on", previous_response_id=response.id)
        held = await second.responses.input_items.list(later.id, order="asc")
        assert [item.type for item in held.data] == ["message"] * 7
        for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "gone"}, {"more": "1"}):
            answer = await get(one, f"/v1/responses/{response.id}/input_items", **query)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


async def get(world: AdminWorld, path: str, by: str = "user", **query: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys[by]}"}
    return await world.public.get(path, headers=headers, params=query)


async def test_a_deleted_response_is_gone_everywhere(worlds: list[AdminWorld], tmp_path: Path) -> None:
    one, two = worlds
    async with client_of(one) as first, client_of(two) as second:
        response = await ask(first)
        assert len(objects(tmp_path)) == 1
        await second.responses.delete(response.id)
        for call in (first.responses.retrieve, first.responses.delete, first.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(first, "And?", previous_response_id=response.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    await eventually(lambda: not objects(tmp_path), "its object is deleted")


async def test_another_tenant_finds_nothing(worlds: list[AdminWorld]) -> None:
    one, _ = worlds
    async with client_of(one) as ours, client_of(one, "stranger") as theirs:
        response = await ask(ours)
        for call in (theirs.responses.retrieve, theirs.responses.delete, theirs.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(theirs, previous_response_id=response.id)
        assert caught.value.code == "previous_response_not_found"
        assert (await ours.responses.retrieve(response.id)).id == response.id
        assert (await one.public.get(f"/v1/responses/{response.id}")).status_code == 401


async def test_what_is_not_asked_for_is_not_kept(worlds: list[AdminWorld], tmp_path: Path, redis_url: str) -> None:
    one, _ = worlds
    async with client_of(one) as client:
        for more in ({"store": False}, {"store": None}):
            response = await ask(client, **more)
            assert response.model_dump()["store"] is False
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(response.id)
        kept = await ask(client)
        await ask(client, "on", store=False, previous_response_id=kept.id)
    assert len(objects(tmp_path)) == 1


async def test_responses_go_with_their_tenant(worlds: list[AdminWorld], tmp_path: Path, redis_url: str) -> None:
    one, two = worlds
    async with client_of(one) as client:
        await ask(client)
    assert (await two.call("DELETE", "/tenants/acme")).status_code == 200

    async def is_gone() -> bool:
        async with open_redis(redis_url) as redis:
            names = [name async for name in redis.scan_iter("stratos:responses:tn_*")]
            return not objects(tmp_path) and not [name for name in names if not name.endswith(":bytes")]

    await eventually(is_gone, "the responses of a deleted tenant are removed")


async def test_a_dump_of_redis_and_of_every_disk_has_no_planted_text(
    worlds: list[AdminWorld], redis_url: str, tmp_path: Path
) -> None:
    one, two = worlds
    async with client_of(one) as first, client_of(two) as second:
        response = await ask(first)
        await ask(second, "And then?", previous_response_id=response.id)
    planted = [PLANTED_PROMPT, PLANTED_ANSWER, one.keys["user"], "22" * 32, base64.b64encode(b"\x22" * 32).decode()]
    assert await open_places(planted, redis_url, tmp_path) == []
    # The control: each place is looked into.
    async with open_redis(redis_url) as redis:
        await redis.hset("stratos:control", "x", f"...{PLANTED_ANSWER}...")
    (tmp_path / "objects" / "control").write_text(PLANTED_PROMPT)
    assert len(await open_places(planted, redis_url, tmp_path)) == 2


async def test_a_store_that_is_away_is_told_and_stateless_requests_need_none(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    values = settings(tmp_path, store_by_default=True)
    async with admin_world(redis_server.url, tmp_path, **values) as world, client_of(world) as client:
        await eventually(lambda: has_data_key(world), "the tenant has a data key")
        assert not await has_no_limit(world)
        free = {"plan": "standard", "overrides": {"requests_per_min": None, "tokens_per_min": None}}
        assert (await world.call("PUT", "/tenants/acme", free)).status_code == 200
        await eventually(lambda: has_no_limit(world), "no limit: a share of one is small without Redis")
        kept = await ask(client)
        assert (await ask(client, store=None)).model_dump()["store"] is True, "the setting stands where nothing is said"
        num_computed = len(world.worker.submits)
        redis_server.kill()
        for call in (
            ask(client),
            ask(client, stream=True),
            ask(client, store=False, previous_response_id=kept.id),
            client.responses.retrieve(kept.id),
            client.responses.delete(kept.id),
            client.responses.input_items.list(kept.id),
        ):
            with pytest.raises(openai.InternalServerError) as caught:
                await call
            assert (caught.value.status_code, caught.value.code) == (503, "response_store_unavailable")
        assert len(world.worker.submits) == num_computed, "nothing is computed that cannot be kept"
        assert (await ask(client, store=False)).status == "completed"
        unasked = await ask(client, store=None)
        assert unasked.model_dump()["store"] is False, "it says that it is not kept"
        redis_server.start()


async def test_a_response_that_cannot_be_kept_at_its_end_is_an_error(worlds: list[AdminWorld], tmp_path: Path) -> None:
    """The object store goes away after the request was let in."""
    one, _ = worlds
    async with client_of(one) as client:
        await ask(client)
        folder = tmp_path / "objects" / "responses"
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("in the way")
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client)
        assert caught.value.code == "response_store_unavailable"
        types = []
        async for event in await ask(client, stream=True):
            types.append(event.type)
        assert types[-2:] == ["error", "response.failed"]
        assert "response.completed" not in types
        folder.unlink()
        assert (await ask(client)).status == "completed"


async def test_a_gateway_without_a_platform_key_refuses_state_by_name(redis_url: str, tmp_path: Path) -> None:
    async with admin_world(redis_url, tmp_path) as world, client_of(world) as client:
        for more, param in (({}, "store"), ({"store": None, "previous_response_id": "resp_1"}, "previous_response_id")):
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(client, **more)
            assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")
        assert (await ask(client, store=None)).model_dump()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_" + "a" * 24)
