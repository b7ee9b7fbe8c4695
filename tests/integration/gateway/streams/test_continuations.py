"""Answers that ended before their time go on at any gateway: the exact rest, once, billed once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.common.errors import Overloaded
from stratos.store.counters.redemptions import Claimed, Redeemer, Redemptions
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, TEXT, Read, code_of, contents, read, stream_worlds, texts

PATH = "/v1/completions"


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


def body(path: str = PATH, **more: Any) -> dict[str, Any]:
    return {"model": "base", **ASKED[path], **more}


async def ask(world: AdminWorld, path: str = PATH, *, by: str = "user", key: str = "", **more: Any) -> httpx.Response:
    """A request for a whole answer."""
    headers = {"authorization": f"Bearer {world.keys[by]}", **({"idempotency-key": key} if key else {})}
    return await world.public.post(path, json=body(path, **more), headers=headers)


def refusal_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def token_in(found: Read) -> str:
    """The one token of a stream's events."""
    values = [json.loads(event.data) for event in found.events if event.data.startswith("{")]
    found_there = [value.get("response", value).get("continuation_token") for value in values]
    [token] = [text for text in found_there if text]
    return str(token)


async def cut(world: AdminWorld, path: str = PATH, after: int = 7, key: str = "", **more: Any) -> Read:
    """A stream whose KV has room for so many tokens."""
    world.worker.exhaust_after = after
    headers = {"idempotency_key": key} if key else {}
    found = await read(world, "POST", path, body(path, stream=True, **more), **headers)
    world.worker.exhaust_after = None
    assert found.status == 200, found.events
    return found


def replayed(world: AdminWorld) -> float:
    """Records that it has shown."""
    return float(world.service.metrics.get_sample_value("stratos_stream_records_total", {"event": "replayed"}) or 0)


def text_of(path: str, answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    value = answer.json()
    match path:
        case "/v1/chat/completions":
            return str(value["choices"][0]["message"]["content"])
        case "/v1/responses":
            return str(value["output"][0]["content"][0]["text"])
        case "/v1/messages":
            return str(value["content"][0]["text"])
    return str(value["choices"][0]["text"])


@pytest.mark.parametrize("path", list(ASKED))
async def test_the_rest_comes_from_any_gateway_in_every_dialect(worlds: list[AdminWorld], path: str) -> None:
    """It is cut twice; the last part is asked for without a stream."""
    one, two = worlds
    first = await cut(one, path)
    second = await cut(two, path, after=12, continuation_token=token_in(first))
    third = await ask(one, path, continuation_token=token_in(second))
    parts = [contents(first)[0], contents(second)[0], text_of(path, third)]
    assert all(parts)
    assert "".join(parts) == TEXT
    assert "continuation_token" not in third.json()
    submits = [submit for world in worlds for submit in world.worker.submits]
    assert len({submit.seed for submit in submits}) == 1
    assert sorted(len(submit.choices[0].emitted_ids) for submit in submits) == [0, 7, 12]


async def test_choices_that_had_ended_do_not_come_again(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    more = {"n": 2, "prompt": ["go", "on"], "echo": True}
    script = one.worker.script
    for world in worlds:
        world.worker.script = lambda submit, choice: [*script(submit, choice)[:4], 4] if choice else script(submit, 0)
    whole = (await ask(two, **more)).json()
    one.worker.exhaust_after = 9
    first = (await ask(one, **more)).json()
    rest = (await ask(two, continuation_token=first["continuation_token"], **more)).json()
    assert [choice["finish_reason"] for choice in first["choices"]] == ["length", "stop"] * 2
    assert [choice["index"] for choice in rest["choices"]] == [0, 2]
    told = {choice["index"]: choice["text"] for choice in (*first["choices"],)}
    for choice in rest["choices"]:
        told[choice["index"]] += choice["text"]
    assert told == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert rest["usage"]["prompt_tokens"] == 0
    num_told = first["usage"]["completion_tokens"] + rest["usage"]["completion_tokens"]
    assert num_told == whole["usage"]["completion_tokens"]


async def test_it_is_billed_once(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    first = (await ask(two)).json()["usage"]
    cut_off = await cut(one, after=5)
    await ask(two, continuation_token=token_in(cut_off))

    async def counts() -> list[Any]:
        headers = {"authorization": f"Bearer {one.keys['user']}"}
        rows = (await one.public.get("/v1/usage", headers=headers)).json()["data"]
        return [(row["requests"], row["prompt_tokens"], row["output_tokens"]) for row in rows]

    async def is_billed() -> bool:
        return await counts() == [(3, 2 * first["prompt_tokens"], 2 * first["completion_tokens"])]

    await eventually(is_billed, "two answers are billed, one of them in two parts")


async def test_of_two_at_once_one_wins(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    token = token_in(await cut(one))
    answers = await asyncio.gather(*[ask(world, continuation_token=token) for world in (one, two, one, two)])
    assert sorted(answer.status_code for answer in answers) == [200, 410, 410, 410]
    assert {refusal_of(answer) for answer in answers if answer.status_code != 200} == {(410, "continuation_used")}
    assert len(one.worker.submits) + len(two.worker.submits) == 2


async def test_others_tokens_and_other_requests_are_refused(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    token = token_in(await cut(one))
    place = len(token) // 2
    forged = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
    assert refusal_of(await ask(two, continuation_token=forged)) == (400, "invalid_continuation")
    assert refusal_of(await ask(two, continuation_token=token, by="stranger")) == (400, "invalid_continuation")
    assert refusal_of(await ask(two, continuation_token=7)) == (400, "invalid_request")
    assert refusal_of(await ask(two, continuation_token=token, model="gone")) == (404, "model_not_found")
    for other in ({"prompt": "other"}, {"n": 2}, {"temperature": 0.5}, {"stop": "x"}):
        assert refusal_of(await ask(two, continuation_token=token, **other)) == (422, "continuation_mismatch")
    chat = await ask(two, "/v1/chat/completions", continuation_token=token)
    assert refusal_of(chat) == (422, "continuation_mismatch")
    assert refusal_of(await ask(two, continuation_token=token, max_tokens=7)) == (400, "invalid_request")
    assert text_of(PATH, await ask(two, continuation_token=token, max_tokens=50))  # none of these has used it up


async def test_a_rest_that_could_not_be_had_can_be_asked_for_again(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    first = await cut(one)
    two.router.errors = [Overloaded()]
    assert (await ask(two, continuation_token=token_in(first))).status_code == 503
    assert contents(first)[0] + text_of(PATH, await ask(two, continuation_token=token_in(first))) == TEXT


async def test_a_rest_with_a_key_is_given_again_and_resumed_elsewhere(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    first = await cut(one, key="first")
    again = await read(two, "POST", PATH, body(stream=True), idempotency_key="first")
    assert texts(again) == texts(first)
    token = token_in(again)
    one.worker.step_s = 0.08  # comments begin its stream before the first token does
    more = body(stream=True, continuation_token=token)
    begun = await read(one, "POST", PATH, more, most=3, idempotency_key="rest")
    rest = await read(two, "POST", PATH, more, idempotency_key="rest", last_event_id=begun.last_id)
    assert contents(first)[0] + contents(begun)[0] + contents(rest)[0] == TEXT
    other = await read(two, "POST", PATH, more, idempotency_key="another")
    assert code_of(other) == (410, "continuation_used")
    assert code_of(await read(two, "POST", PATH, more, idempotency_key="another")) == (410, "continuation_used")
    submits = [submit for world in worlds for submit in world.worker.submits]
    assert len({submit.seed for submit in submits}) == 1


@pytest.fixture
async def patient_worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """No stream is taken over because its gateway is held up."""
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def test_who_follows_redeems_before_it_goes_on(redis_url: str, patient_worlds: list[AdminWorld]) -> None:
    """Its gateway is left with nothing, and the token is another one's before the follower takes over."""
    one, two = patient_worlds
    token = token_in(await cut(one))
    one.worker.hang_after = 0
    first = asyncio.create_task(ask(one, key="rest", continuation_token=token))
    await eventually(lambda: len(one.worker.submits) == 2, "the rest is asked for")
    second = asyncio.create_task(ask(two, key="rest", continuation_token=token))
    await eventually(lambda: replayed(two) == 1, "it follows")
    async with open_redis(redis_url) as redis:
        [name] = [key async for key in redis.scan_iter("*:continuations:*")]
        await redis.set(name, "another try", px=60_000)
    first.cancel()
    assert refusal_of(await second) == (410, "continuation_used")
    assert not two.worker.submits


async def test_a_background_rest_that_failed_with_nothing_gives_its_token_back(redis_url: str, tmp_path: Path) -> None:
    path = "/v1/responses"
    async with stream_worlds(redis_url, tmp_path, num=1, first={"background_s": 0.3}) as [world]:
        first = await cut(world, path)
        world.router.errors = [Overloaded("full")] * 100
        begun = (await ask(world, path, background=True, continuation_token=token_in(first))).json()

        async def has_failed() -> bool:
            headers = {"authorization": f"Bearer {world.keys['user']}"}
            found = await world.public.get(f"{path}/{begun['id']}", headers=headers)
            return bool(found.json()["status"] == "failed")

        await eventually(has_failed, "no worker takes it")
        world.router.errors = []

        async def is_given_back() -> bool:
            rest = await ask(world, path, continuation_token=token_in(first))
            return rest.status_code == 200 and contents(first)[0] + text_of(path, rest) == TEXT

        await eventually(is_given_back, "it can be asked for again")


async def test_it_goes_on_after_all_gateways_were_started_again(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1) as [before]:
        first = await cut(before)
    async with stream_worlds(redis_url, tmp_path, num=1) as [after]:
        assert contents(first)[0] + text_of(PATH, await ask(after, continuation_token=token_in(first))) == TEXT


async def test_claims_hold_in_redis(redis_url: str) -> None:
    a, again, b = Redeemer("a", "1"), Redeemer("a", "2"), Redeemer("b", "1")
    async with open_redis(redis_url) as redis:
        claims = Redemptions(redis, RecordStoreConfig(), 60.0)
        assert await claims.claim("acme", "one", a, 5.0) is Claimed.OK
        [key] = [key async for key in redis.scan_iter("*continuations*")]
        await redis.pexpire(key, 10_000)
        assert await claims.claim("acme", "one", again, -5.0) is Claimed.OK
        assert await redis.pttl(key) > 50_000, "it is kept from now on"
        assert await claims.claim("acme", "one", b, 5.0) is Claimed.USED
        for other in (a, b, Redeemer("b")):
            await claims.release("acme", "one", other)
        assert await claims.claim("acme", "one", b, 5.0) is Claimed.USED
        await claims.release("acme", "one", again)
        assert await claims.claim("acme", "one", b, 0.0) is Claimed.EXPIRED
        assert await claims.claim("acme", "one", b, 5.0) is Claimed.OK
        await claims.release("acme", "one", Redeemer("b"))
        assert [key async for key in redis.scan_iter("*continuations*")] == []
