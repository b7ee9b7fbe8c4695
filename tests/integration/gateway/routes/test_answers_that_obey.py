"""Every dialect x what may have to obey a schema x forms of an answer: one that does not is an error, never a 200.

The worker says what the test wants, whatever the grammar it was given allows.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from stratos_gateway.preparation.dialects import DIALECTS
from tests.support.worlds.gateway_world import World, gateway_world, say
from tests.support.worlds.socket_client import SocketClient

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT, COMPLETION, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SOCKET = "socket"
FUNCTION = {"name": "look", "parameters": CITY}
TURN = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {**TURN, "max_tokens": 300},
    COMPLETION: {"prompt": "hi", "max_tokens": 300},
    RESPONSE: {"input": "hi", "max_output_tokens": 300},
    MESSAGE: {**TURN, "max_tokens": 300},
}
CONTENT: Mapping[str, dict[str, Any]] = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}},
    COMPLETION: {"structured_outputs": {"json": CITY}},
    RESPONSE: {"text": {"format": {"type": "json_schema", "name": "c", "schema": CITY}}},
    MESSAGE: {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
}
REQUIRED: Mapping[str, dict[str, Any]] = {
    CHAT: {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    RESPONSE: {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    MESSAGE: {"tools": [{"name": "look", "input_schema": CITY}], "tool_choice": {"type": "any"}},
}
STRICT: Mapping[str, dict[str, Any]] = {
    CHAT: {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
    RESPONSE: {"tools": [{"type": "function", **FUNCTION, "strict": True}]},
    MESSAGE: {"tools": [{"name": "look", "input_schema": CITY, "strict": True}]},
}


def call(arguments: str, name: str = "look") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD, BAD = '{"city": "Rome", "days": 2}', ['{"city": "Rome", "days": 0}', '{"days": 2}', '{"city": "Rome"', '["Rome"]']
ANSWERS: Mapping[str, tuple[list[str], list[str]]] = {
    "content": ([GOOD, '{"city": ""}'], [*BAD, "Rome", f"{GOOD} and more"]),
    "required": ([call(GOOD), f"{call(GOOD)}\n{call(GOOD)}"], [*map(call, BAD), "Rome", f"{call(GOOD)}\n{call('{}')}"]),
    "strict": (["Rome", f"Well.\n{call(GOOD)}"], [call(bad) for bad in BAD]),
}
"""Outputs that obey, and outputs that do not."""
FIELDS: Mapping[str, Mapping[str, dict[str, Any]]] = {"content": CONTENT, "required": REQUIRED, "strict": STRICT}


def test_every_dialect_has_a_row() -> None:
    paths = {dialect.path for dialect in DIALECTS}
    assert paths == set(BODIES) == set(CONTENT)
    assert set(REQUIRED) == set(STRICT) == paths - {COMPLETION}, "which has no tools"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def whole(world: World, route: str, fields: Mapping[str, Any]) -> bool:
    """Whether the answer is one."""
    if route == SOCKET:
        async with SocketClient(world) as socket:
            socket.say({"type": "response.create", "model": "base", **BODIES[RESPONSE], **fields})
            last = (await socket.events())[-1]
            return bool(last["type"] == "response.completed")
    answer = await world.http.post(route, json={"model": "base", **BODIES[route], **fields})
    if answer.status_code != 200:
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "Rome" not in answer.text
    return answer.status_code == 200


async def streamed(world: World, route: str, fields: Mapping[str, Any]) -> bool:
    if route == SOCKET:
        return await whole(world, route, fields)
    answer = await world.http.post(route, json={"model": "base", **BODIES[route], **fields, "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    if answer.status_code != 200:
        return False
    is_failed = any(("error" in event and event["error"]) or event.get("type") == "response.failed" for event in events)
    ends = [choice["finish_reason"] for event in events for choice in event.get("choices", ())]
    kinds = [event.get("type") for event in events]
    is_ended = bool({"response.completed", "message_stop"} & set(kinds)) or any(ends)
    assert is_failed != is_ended, "an answer has one end"
    return is_ended


@pytest.mark.parametrize("form", [whole, streamed])
@pytest.mark.parametrize("kind", FIELDS)
async def test_an_answer_obeys_or_is_an_error(world: World, kind: str, form: Callable[..., Any]) -> None:
    for route in (*FIELDS[kind], SOCKET):
        fields = FIELDS[kind][RESPONSE if route == SOCKET else route]
        for is_good, outputs in zip((True, False), ANSWERS[kind], strict=True):
            for output in outputs:
                world.worker.script = say(output)
                assert await form(world, route, fields) is is_good, f"{route}: {output}"


async def test_one_bad_choice_of_several_is_an_error(world: World) -> None:
    world.worker.script = lambda submit, choice: say(GOOD if choice else BAD[0])(submit, choice)
    for form in (whole, streamed):
        assert not await form(world, CHAT, {**CONTENT[CHAT], "n": 2})


async def test_what_was_cut_short_is_no_finished_answer(world: World) -> None:
    world.worker.script = say(GOOD)
    for form in (whole, streamed):
        assert await form(world, CHAT, {**CONTENT[CHAT], "max_tokens": 3})
        assert await form(world, CHAT, {**CONTENT[CHAT], "stop": ["days"]})
