"""Streams that are left and resumed, at the same gateway or another: every event once, every answer billed once."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from stratos.common.errors import DependencyDown
from stratos.store.redis import open_redis
from stratos.store.sealed.stream_store import StreamStore
from stratos_gateway.streams.codec import decode_head
from tests.integration.gateway.streams.test_files import call
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.gateway_world import say
from tests.support.worlds.stream_world import (
    ASKED,
    TEXT,
    Read,
    code_of,
    contents,
    events_in,
    num_submits,
    read,
    stream_worlds,
    texts,
)

ROUTES = list(ASKED)


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


def body(path: str, **more: Any) -> dict[str, Any]:
    return {"model": "base", "stream": True, "seed": 5, **ASKED[path], **more}


async def whole(world: AdminWorld, path: str, key: str, **more: Any) -> Read:
    found = await read(world, "POST", path, body(path, **more), idempotency_key=key)
    assert found.status == 200, found.events
    return found


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_that_has_ended_is_given_again_at_every_gateway(worlds: list[AdminWorld], path: str) -> None:
    one, two = worlds
    first = await whole(one, path, "a key")
    again, elsewhere = await whole(one, path, "a key"), await whole(two, path, "a key")
    assert texts(first) == texts(again) == texts(elsewhere)
    assert [event.id for event in first.events] == [event.id for event in again.events]
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert num_submits(worlds) == 1


@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_comes_back_gets_the_rest(worlds: list[AdminWorld], path: str) -> None:
    """Its connection is cut after some events, also in the middle of those of one token."""
    one, two = worlds
    expected = contents(await whole(one, path, "undisturbed"))
    one.worker.step_s = 0.02
    for most in (1, 2, 3, 5, 8):
        begun = await read(one, "POST", path, body(path), most=most, idempotency_key=f"cut after {most}")
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        assert rest.status == 200, rest.events
        assert contents(begun, rest) == expected, most


async def test_what_the_version_before_took_is_given_again_though_it_is_refused_now(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/chat/completions"
    given = body(path, messages=[{"role": "user", "content": "hi", "weight": 1}])
    with monkeypatch.context() as before:
        before.setattr("stratos_gateway.openai.messages.asks", lambda value: False)
        first = await read(worlds[0], "POST", path, given, idempotency_key="a key")
    again = await read(worlds[1], "POST", path, given, idempotency_key="a key")
    assert (again.status, texts(again)) == (200, texts(first))
    assert again.headers["x-stratos-ignored"] == "messages[0].weight"
    assert (await read(worlds[1], "POST", path, given, idempotency_key="another")).status == 400


async def test_who_has_seen_a_part_is_not_given_all_of_it_without_the_record(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would begin again, and its client would have its first part twice."""
    one, two = worlds
    path = "/v1/completions"
    expected = contents(await whole(one, path, "undisturbed"))
    begun = await read(one, "POST", path, body(path), most=3, idempotency_key="cut")
    with monkeypatch.context() as patch:
        patch.setattr(StreamStore, "open", AsyncMock(side_effect=DependencyDown("Redis does not answer")))
        refused = await read(two, "POST", path, body(path), idempotency_key="cut", last_event_id=begun.last_id)
    assert code_of(refused) == (503, "dependency_unavailable")
    rest = await read(two, "POST", path, body(path), idempotency_key="cut", last_event_id=begun.last_id)
    assert contents(begun, rest) == expected


@pytest.mark.parametrize("path", ROUTES)
async def test_who_has_everything_is_told_so_and_gets_nothing_again(worlds: list[AdminWorld], path: str) -> None:
    one, two = worlds
    first = await whole(one, path, "a key")
    for world in worlds:
        again = await read(world, "POST", path, body(path), idempotency_key="a key", last_event_id=first.last_id)
        assert (again.status, again.events[0].data, again.stream) == (204, "", first.stream)
    other = await read(two, "POST", path, body(path, seed=6), idempotency_key="a key", last_event_id=first.last_id)
    assert other.status == 422
    assert num_submits(worlds) == 1


async def test_who_has_seen_a_part_is_not_given_all_of_it_where_there_can_be_no_record(
    redis_url: str, tmp_path: Path
) -> None:
    path, first = "/v1/completions", {"max_body_bytes": 8}
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0, first=first) as [one, two]:
        begun = await read(two, "POST", path, body(path), most=3, idempotency_key="cut")
        for method, at in (("GET", f"/v1/streams/{begun.stream}"), ("POST", path)):
            asked = body(path) if method == "POST" else None
            refused = await read(one, method, at, asked, idempotency_key="cut", last_event_id=begun.last_id)
            assert code_of(refused) == (410, "stream_gone")


async def test_the_record_is_there_sealed_before_the_first_byte(redis_url: str, tmp_path: Path) -> None:
    """Nothing but the call that makes it writes here; a gateway that is asked next has it."""
    path = "/v1/completions"
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0, first={"flush_s": 600.0}) as [one, two]:
        one.worker.step_s, sent = 0.05, body(path, max_tokens=59)
        headers = {"authorization": f"Bearer {one.keys['user']}", "idempotency-key": "a key"}
        async with (
            one.public.stream("POST", path, json=sent, headers=headers) as answer,
            open_redis(redis_url) as redis,
        ):
            assert await anext(answer.aiter_text())
            kept = {key: await redis.hgetall(key) async for key in redis.scan_iter("stratos:stream*", _type="hash")}
            found = str(kept)
            assert answer.headers["x-stratos-stream"] in found
            sealed = [base64.b64decode(text) for text in re.findall("[A-Za-z0-9+/]{65,}={0,2}", found)]
            assert len(sealed) == 1, "the request"
            assert not any(decode_head(sealed[0][begin:]) for begin in range(64)), "it is packed, and can be read"
            assert code_of(await read(two, "POST", path, body(path), idempotency_key="a key"))[0] == 422


async def test_choices_are_resumed_each_where_it_stands(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    path, more = "/v1/completions", {"n": 3, "prompt": ["go", "on"], "temperature": 1.0}
    expected = contents(await whole(one, path, "undisturbed", **more))
    one.worker.step_s = 0.02
    begun = await read(one, "POST", path, body(path, **more), most=17, idempotency_key="cut")
    rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
    assert contents(begun, rest) == expected


LOGPROBS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"logprobs": 2, "n": 2, "temperature": 1.0},
    "/v1/responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
}


def told(*reads: Read) -> dict[int, list[Any]]:
    """Log probabilities of each choice, token by token, and the offsets that completions tell."""
    found: dict[int, list[Any]] = defaultdict(list)
    for event in (event for part in reads for event in part.events if event.data != "[DONE]"):
        value = json.loads(event.data)
        [choice, *_] = value.get("choices") or [{}]
        logprobs = (value if value.get("type") == "response.output_text.delta" else choice).get("logprobs")
        if isinstance(logprobs, dict):
            logprobs = logprobs.get("content") or list(zip(*map(logprobs.get, _OFFSETS), strict=True))
        found[choice.get("index", 0)] += logprobs or []
    return dict(found)


_OFFSETS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.mark.parametrize("path", list(LOGPROBS))
async def test_log_probabilities_come_again_and_go_on(worlds: list[AdminWorld], path: str) -> None:
    one, two = worlds
    more = LOGPROBS[path]
    first = await whole(one, path, "a key", **more)
    assert texts(await whole(two, path, "a key", **more)) == texts(first)
    expected = told(first)
    assert all(len(entries) > 10 for entries in expected.values()), expected
    one.worker.step_s = 0.02
    for most in (1, 2, 5, 8, 9):
        begun = await read(one, "POST", path, body(path, **more), most=most, idempotency_key=f"cut after {most}")
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        assert (rest.status, told(begun, rest)) == (200, expected), most


ECHOED: dict[str, Any] = {"prompt": ["go on", "and on"], "n": 2, "echo": True, "logprobs": 1, "temperature": 1.0}


async def test_log_probabilities_of_prompts_come_again_and_go_on(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    path = "/v1/completions"
    first = await whole(one, path, "a key", **ECHOED)
    assert texts(await whole(two, path, "a key", **ECHOED)) == texts(first)
    assert num_submits(worlds) == 2, "of each prompt"
    expected = told(first)
    assert [entries[0][1] for entries in expected.values()] == [None] * 4, "a prompt's first token has none"
    one.worker.step_s = 0.02
    for most in (1, 3, 6):
        begun = await read(one, "POST", path, body(path, **ECHOED), most=most, idempotency_key=f"cut after {most}")
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        assert (rest.status, told(begun, rest)) == (200, expected), most


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"prompt_logprobs": 1}),
        ("/v1/completions", {"prompt_logprobs": 1}),
        ("/v1/completions", ECHOED),
    ],
)
async def test_whole_answers_with_log_probabilities_of_prompts_are_given_again(
    worlds: list[AdminWorld], path: str, more: dict[str, Any]
) -> None:
    sent, answers = body(path, **more) | {"stream": False}, []
    for world in (*worlds, worlds[0]):
        headers = {"authorization": f"Bearer {world.keys['user']}", "idempotency-key": "whole"}
        answers.append(await world.public.post(path, json=sent, headers=headers))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.content for answer in answers}) == 1
    assert b"logprobs" in answers[0].content
    assert num_submits(worlds) == (2 if more is ECHOED else 1)


async def test_large_answers_come_again(worlds: list[AdminWorld]) -> None:
    """They are made in a thread, while the gateway goes on to write records."""
    for world in worlds:
        world.worker.script = say(TEXT * 20)
    path, more = "/v1/completions", {"prompt": "go", "n": 8, "logprobs": 5, "max_tokens": 600}
    for key in ("one", "two", "three"):
        answers = [
            await call(world, "POST", path, json=body(path, **more, stream=False), headers={"idempotency-key": key})
            for world in worlds
        ]
        assert [answer.status_code for answer in answers] == [200] * 2, answers[1].text
        assert answers[0].content == answers[1].content


async def test_an_answer_is_billed_once_however_often_it_is_left(worlds: list[AdminWorld], redis_url: str) -> None:
    for world in worlds:
        world.worker.step_s = 0.01
    path, key = "/v1/completions", "billed"
    parts = [await read(worlds[0], "POST", path, body(path), most=3, idempotency_key=key)]
    for number in range(3):
        world, last = worlds[(number + 1) % 2], parts[-1].last_id
        parts.append(await read(world, "POST", path, body(path), most=3, idempotency_key=key, last_event_id=last))
    parts.append(await read(worlds[1], "GET", f"/v1/streams/{parts[0].stream}", last_event_id=parts[-1].last_id))
    num_tokens = len(worlds[0].worker.script(worlds[0].worker.submits[0], 0))

    async def is_billed() -> bool:
        usage = await worlds[0].public.get("/v1/usage", headers={"authorization": f"Bearer {worlds[0].keys['user']}"})
        rows = usage.json()["data"]
        return [(row["requests"], row["output_tokens"]) for row in rows] == [(1, num_tokens)]

    await eventually(is_billed, "one request of all its tokens is billed")


async def test_a_stream_belongs_to_its_tenant_and_its_key_to_its_body(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    path = "/v1/completions"
    begun = await whole(one, path, "a key")
    at = f"/v1/streams/{begun.stream}"
    assert code_of(await read(two, "GET", at, by="stranger")) == (404, "not_found")
    assert code_of(await read(two, "POST", f"{at}/cancel", by="stranger")) == (404, "not_found")
    assert (await read(two, "GET", at, last_event_id=begun.last_id)).status == 204
    other = await read(two, "POST", path, body(path, max_tokens=7), idempotency_key="a key")
    assert code_of(other) == (422, "idempotency_key_reused")
    stranger = await read(two, "POST", path, body(path, max_tokens=7), idempotency_key="a key", by="stranger")
    assert stranger.status == 200
    assert stranger.stream != begun.stream
    for cursor in (stranger.last_id, "x", "000000000000.1.1", begun.events[2].id + "-3", "9" * 5000):
        assert code_of(await read(two, "GET", at, last_event_id=cursor)) == (400, "invalid_cursor")
    assert code_of(await read(two, "POST", path, body(path), idempotency_key="k" * 10_000)) == (
        400,
        "invalid_idempotency_key",
    )


async def test_a_place_behind_the_end_is_refused(worlds: list[AdminWorld]) -> None:
    """It has the form of an id of this stream; whoever got none so far would take the answer for whole."""
    one, two = worlds
    path = "/v1/completions"
    first = await whole(one, path, "ended")
    at, [tag, *_] = f"/v1/streams/{first.stream}", first.last_id.split(".")
    num_units = max(int(event.id.split(".")[2]) for event in first.events if event.id and not event.id.endswith(".z"))
    assert (await read(two, "GET", at, last_event_id=f"{tag}.{num_units}.{num_units}")).status == 200
    parts = f"{num_units}.{num_units}.e9", f"{num_units}.{num_units}.e999", "0.0.0-1-9"
    for place in (f"{num_units + 1}.{num_units + 1}", "100000.100000", "1.999999999", *parts):
        refused = await read(two, "GET", at, last_event_id=f"{tag}.{place}")
        assert code_of(refused) == (400, "invalid_cursor"), place
        assert '"param":"last-event-id"' in refused.events[0].text, place
    one.worker.step_s = 0.02
    begun = await read(one, "POST", path, body(path), most=3, idempotency_key="running")
    at, [tag, *_] = f"/v1/streams/{begun.stream}", begun.last_id.split(".")
    wrong = await read(two, "GET", at, last_event_id=f"{tag}.100000.100000")
    assert "invalid_cursor" in wrong.events[-1].text
    rest = await read(two, "GET", at, last_event_id=begun.last_id)
    assert contents(begun, rest) == contents(first)
    assert num_submits(worlds) == 3, "what the wrong one had computed is not computed again"


async def test_a_body_that_is_written_in_another_way_is_the_same(worlds: list[AdminWorld]) -> None:
    """White space and the order of its fields are its writer's."""
    one, two = worlds
    path = "/v1/completions"
    first = await whole(one, path, "a key")
    written = json.dumps(dict(reversed(body(path).items())), indent=4)
    headers = {"authorization": f"Bearer {two.keys['user']}", "idempotency-key": "a key"}
    again = await two.public.post(path, content=written, headers=headers | {"content-type": "application/json"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert [event.text for event in events_in(again.text)] == texts(first)
    assert again.text.startswith("retry: 1000\nid: ")
    assert num_submits(worlds) == 1


@pytest.mark.parametrize("bound", [{"tenant_streams": 3}, {"tenant_bytes": 3000}])
async def test_a_tenant_of_many_keys_loses_its_oldest_records(
    redis_url: str, tmp_path: Path, bound: dict[str, int]
) -> None:
    """And no other tenant loses one."""
    async with stream_worlds(redis_url, tmp_path, num=1, first=bound) as [world]:
        path = "/v1/completions"
        other = await read(world, "POST", path, body(path), idempotency_key="k", by="stranger")
        reads = [await whole(world, path, f"k{number}") for number in range(9)]
        kept = [(await read(world, "GET", f"/v1/streams/{found.stream}")).status for found in reads]
        if "tenant_streams" in bound:  # bytes are counted when they are written, which may be after the answer's end
            assert kept == [410] * 6 + [200] * 3, "the oldest ones are gone"
        assert 1 <= kept.count(200) <= 4, kept
        assert code_of(await read(world, "GET", f"/v1/streams/{reads[0].stream}")) == (410, "stream_gone")
        assert (await read(world, "GET", f"/v1/streams/{other.stream}", by="stranger")).status == 200


async def test_a_cancelled_stream_ends_and_stays_so(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.hang_after = 4
    path = "/v1/completions"
    begun = await read(one, "POST", path, body(path), most=3, idempotency_key="cut")
    at = f"/v1/streams/{begun.stream}"
    answer = await two.public.post(f"{at}/cancel", headers={"authorization": f"Bearer {two.keys['user']}"})
    assert answer.json() == {"id": begun.stream, "object": "stream", "status": "cancelled"}
    assert code_of(await read(two, "GET", at, last_event_id=begun.last_id)) == (410, "stream_cancelled")


async def test_a_record_that_has_ended_is_gone_and_not_unknown(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1) as [world]:
        begun = await whole(world, "/v1/completions", "a key")
        async with open_redis(redis_url) as redis:
            for key in [key async for key in redis.scan_iter("stratos:streams:*")]:
                await redis.delete(key)
        assert code_of(await read(world, "GET", f"/v1/streams/{begun.stream}")) == (410, "stream_gone")
        never = begun.stream[:-1] + ("0" if begun.stream[-1] != "0" else "1")
        assert code_of(await read(world, "GET", f"/v1/streams/{never}")) == (404, "not_found")


async def test_whole_answers_are_given_again_under_their_key(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    sent = {"model": "base", "prompt": "go", "max_tokens": 60}
    first = await read(one, "POST", "/v1/completions", sent, idempotency_key="whole")
    headers = {"authorization": f"Bearer {two.keys['user']}", "idempotency-key": "whole"}
    again = await two.public.post("/v1/completions", json=sent, headers=headers)
    repeated = await one.public.post("/v1/completions", json=sent, headers=headers)
    assert first.status == again.status_code == 200
    assert again.content == repeated.content
    assert num_submits(worlds) == 1


async def test_the_best_of_several_is_the_same_everywhere(worlds: list[AdminWorld]) -> None:
    sent = {"model": "base", "prompt": "go", "max_tokens": 60, "best_of": 3, "temperature": 1.0, "logprobs": 1}
    answers = [
        await world.public.post(
            "/v1/completions",
            json=sent,
            headers={"authorization": f"Bearer {world.keys['user']}", "idempotency-key": "best"},
        )
        for world in worlds
    ]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["choices"][0]["logprobs"]["tokens"]
    assert num_submits(worlds) == 1
