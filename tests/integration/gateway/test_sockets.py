"""WebSockets on /v1/responses: the events of a stream, one connection's memory, bounds, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, say
from tests.support.worlds.socket_client import BINARY, PING, SocketClient, client_frame

TEXT = "one two three"
BODY = {"model": "base", "input": "x"}
CREATE = {"type": "response.create", **BODY}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world(requests={"max_open_per_tenant": 8}) as made:
        made.worker.script = say(TEXT)
        yield made


def prompt_of(world: World) -> str:
    return shipped_tokenizer().decode(list(world.worker.submits[-1].prompt_ids), skip_special=False)


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def test_the_events_are_those_of_a_stream(world: World) -> None:
    async with SocketClient(world) as socket:
        assert socket.status == 101
        socket.create()
        events = await socket.events()
    answer = await world.http.post("/v1/responses", json={"model": "base", "input": "hi", "stream": True})
    streamed = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]

    def joined(found: list[dict[str, Any]]) -> list[str]:
        kinds = [event["type"] for event in found]
        return [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]

    assert joined(events) == joined(streamed)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(events[-1]["response"]) == text_of(streamed[-1]["response"]) == TEXT


async def test_the_first_event_names_what_is_ignored(world: World) -> None:
    async with SocketClient(world) as socket:
        for fields, told in (({"client_metadata": {"a": "b"}}, {"x-stratos-ignored": "client_metadata"}), ({}, None)):
            socket.create(**fields)
            first, *others = await socket.events()
            assert (first["type"], first.get("headers")) == ("response.created", told)
            assert not any("headers" in event for event in others)
        socket.create(client_metadata={"a": "b"}, input=5)
        refused = await socket.event()
        assert refused is not None
        assert refused["status"] == 400


async def test_a_connection_goes_on_from_its_last_response_without_any_store(world: World) -> None:
    async with SocketClient(world) as socket, SocketClient(world) as other:
        first = await socket.answer("zebra", store=False)
        second = await socket.answer("and then?", store=False, previous_response_id=first["id"])
        assert (second["previous_response_id"], second["store"]) == (first["id"], False)
        assert [prompt_of(world).count(text) for text in ("zebra", TEXT, "and then?")] == [1, 1, 1]
        for socket_of, unknown in ((socket, first["id"]), (other, second["id"])):
            error = await socket_of.answer("x", previous_response_id=unknown)
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        third = await socket.answer("go on", previous_response_id=second["id"])
        assert third["status"] == "completed"
        assert prompt_of(world).count(TEXT) == 2
    answer = await world.http.post("/v1/responses", json={**BODY, "previous_response_id": third["id"]})
    assert answer.status_code == 400, "no other connection knows it"


async def test_a_warm_up_computes_the_prompt_and_its_response_is_gone_on_from(world: World) -> None:
    async with SocketClient(world) as socket:
        socket.create("zebra", instructions="Be brief.", store=False, generate=False, max_output_tokens=50)
        events = await socket.events()
        assert [event["type"] for event in events] == [
            "response.created", "response.in_progress", "response.completed"
        ]  # fmt: skip
        warm = events[-1]["response"]
        assert (warm["output"], warm["status"], warm["usage"]["output_tokens"]) == ([], "completed", 1)
        assert ("zebra" in prompt_of(world), world.worker.submits[-1].sampling.max_tokens) == (True, 1)
        second = await socket.answer("and then?", store=False, previous_response_id=warm["id"])
        assert text_of(second) == TEXT
        assert [prompt_of(world).count(text) for text in ("zebra", TEXT, "and then?")] == [1, 0, 1]
        socket.say({**CREATE, "input": [], "instructions": "Be brief.", "generate": False})
        alone = (await socket.events())[-1]["response"]
        assert (await socket.answer("x", previous_response_id=alone["id"]))["status"] == "completed"
    refused = await world.http.post("/v1/responses", json={**BODY, "generate": False, "background": True})
    assert refused.json()["error"]["param"] == "generate"


async def test_a_response_that_is_too_large_is_not_remembered() -> None:
    async with gateway_world(sockets={"kept_bytes": 100}) as world, SocketClient(world) as socket:
        world.worker.script = say(TEXT)
        first = await socket.answer()
        error = await socket.answer("and then?", previous_response_id=first["id"])
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert "more than 100 bytes" in error["error"]["message"]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_json"),
        (json.dumps(CREATE)[:-1] + ', "metadata": ' + "[" * 300 + "]" * 300 + "}", None, "invalid_json"),
        ({"type": "response.cancel"}, "type", None),
        ({**CREATE, "input": None}, "input", None),
        ({**CREATE, "oops": 1}, "oops", "unknown_parameter"),
        ({**CREATE, "stream": False}, "stream", "unsupported_parameter"),
        ({**CREATE, "background": True}, "background", "unsupported_parameter"),
        ({**CREATE, "generate": 0}, "generate", None),
        ({**CREATE, "model": "b"}, "model", "model_not_found"),
    ],
)
async def test_a_refusal_ends_no_connection(world: World, message: Any, param: str | None, code: str | None) -> None:
    async with SocketClient(world, x_request_id="mine") as socket:
        socket.say(message)
        error = await socket.event()
        assert error is not None
        assert error["type"] == "error"
        assert error["status"] in (400, 404)
        assert error["error"]["param"] == param
        if code is not None:
            assert error["error"]["code"] == code
        assert text_of(await socket.answer()) == TEXT


async def test_one_response_runs_at_a_time(world: World) -> None:
    world.worker.step_s = 0.02
    async with SocketClient(world) as socket:
        socket.create()
        first = await socket.event()
        socket.say("{")  # refused without a look at it
        events = [first, *await socket.events()]
        codes = [event["error"]["code"] for event in events if event and event["type"] == "error"]
        assert codes == ["response_in_progress"]
        assert (await socket.events())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (client_frame(b"x" * 100, is_masked=False), 1002),
        (bytes([0xF1, 0x80]), 1002),
        (client_frame(b"x" * 126, PING), 1002),
        (client_frame(b"\xff\xfe"), 1007),
        (client_frame(b"x", BINARY), 1003),
        (client_frame(b"x", 0), 1002),
        (client_frame(b"x" * 3000), 1009),
        (client_frame(b"x" * 1500, is_last=False) + client_frame(b"x" * 1500, 0), 1009),
        (client_frame(b"{", is_last=False), 1008),
        (client_frame(b"{}")[:3], 1008),
    ],
    ids=("unmasked", "kind", "control", "utf-8", "binary", "order", "long", "long together", "half", "half frame"),
)
async def test_a_broken_connection_is_closed_by_name_and_disturbs_no_other(frame: bytes, code: int) -> None:
    async with gateway_world(http={"max_body_bytes": 2048, "body_timeout_s": 0.05}) as world:
        world.worker.script = say(TEXT)
        async with SocketClient(world) as good, SocketClient(world) as socket:
            socket.writer.write(frame)
            answer = asyncio.create_task(good.answer())
            assert await socket.event() is None
            assert socket.closed is not None
            assert socket.closed[0] == code
            assert text_of(await answer) == TEXT
            assert text_of(await good.answer()) == TEXT, "it was idle for longer than a message may take"
        await eventually(lambda: world.metric("stratos_response_sockets_open") == 0, "both are gone")


async def test_a_socket_that_asks_for_nothing_is_closed_whatever_it_sends() -> None:
    async with gateway_world(sockets={"idle_s": 0.2}) as world, SocketClient(world) as socket:
        waiting = asyncio.create_task(socket.event())
        while not waiting.done():
            socket.writer.write(client_frame(b"", PING))
            await asyncio.wait([waiting], timeout=0.02)
        assert waiting.result() is None
        assert socket.closed is not None
        assert socket.closed[0] == 1000
        assert "0.2 s" in socket.closed[1]


async def test_an_old_socket_takes_no_request() -> None:
    async with gateway_world(sockets={"max_age_s": 1e-6}) as world, SocketClient(world) as socket:
        assert (await socket.answer())["error"]["code"] == "websocket_connection_limit_reached"
        assert await socket.event() is None
        assert socket.closed is not None
        assert socket.closed[0] == 1000


async def test_handshakes_are_refused_as_requests_are() -> None:
    async with gateway_world(sockets={"max_open": 2, "max_open_per_tenant": 1}) as world:
        for path, headers, status, code in (
            ("/v1/responses", {"authorization": "Bearer sk-unknown"}, 401, "invalid_api_key"),
            ("/v1/responses", {"sec_websocket_version": "8"}, 400, "invalid_handshake"),
            ("/v1/responses", {"sec_websocket_key": "short"}, 400, "invalid_handshake"),
            ("/v1/responses", {"upgrade": None, "connection": None}, 405, "method_not_allowed"),
            ("/v1/chat/completions", {}, 405, "method_not_allowed"),
        ):
            async with SocketClient(world, path, **headers) as refused:  # type: ignore[arg-type]
                assert (refused.status, refused.refusal["error"]["code"]) == (status, code)
        async with SocketClient(world) as first:
            assert first.status == 101
            async with SocketClient(world) as second:
                assert (second.status, second.refusal["error"]["code"]) == (429, "concurrency_limit")
            async with SocketClient(world, authorization=f"Bearer {OTHER_KEY}"), SocketClient(world) as third:
                assert third.status == 429


async def test_a_key_that_is_revoked_is_refused_at_the_next_request(world: World) -> None:
    async with SocketClient(world) as socket:
        assert text_of(await socket.answer()) == TEXT
        tenant = world.keys.tenants.pop(KEY)
        error = await socket.answer()
        assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
        world.keys.tenants[KEY] = tenant
        assert text_of(await socket.answer()) == TEXT


async def test_a_gateway_that_leaves_ends_idle_sockets_and_lets_others_finish(world: World) -> None:
    world.worker.step_s = 0.05
    async with SocketClient(world) as idle, SocketClient(world) as busy:
        busy.create()
        assert await busy.event() is not None
        world.stop.set()
        assert await idle.event() is None
        assert idle.closed is not None
        assert idle.closed[0] == 1012
        assert text_of((await busy.events())[-1]["response"]) == TEXT
        assert await busy.event() is None
        assert busy.closed is not None
        assert busy.closed[0] == 1012
    assert await world.exit_code == 0
