"""Streams with calls of functions that are cut after their events, and go on at another gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tool_dialects import DIALECTS, Dialect
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.gateway_world import say
from tests.support.worlds.stream_world import Read, read, stream_worlds

CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
ARGUMENTS = '{"city": "Zürich", "note": "}\\" 😀"}'
SAID = f"Let me look.\n{CALL.format('get_weather', ARGUMENTS)}\n{CALL.format('calculate', '{}')}"


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0, keepalive_s=0.0) as found:
        for world in found:
            world.worker.script = say(SAID)
        yield found


def events_of(*reads: Read) -> Iterator[dict[str, Any]]:
    for event in (event for found in reads for event in found.events if event.data.startswith("{")):
        yield json.loads(event.data)


def numbers_of(*reads: Read) -> list[int]:
    return [event["sequence_number"] for event in events_of(*reads) if "sequence_number" in event]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_calls_of_functions_go_on_behind_any_of_their_events(worlds: list[AdminWorld], dialect: Dialect) -> None:
    one, two = worlds
    path, conversation = f"/v1{dialect.path}", [{"role": "user", "content": "go"}]
    body = {"model": "base", "stream": True, **dialect.body, dialect.items: conversation}
    one.worker.step_s, most, num_events = 0.005, 1, 2
    while most < num_events:  # each seventh event: all of them take a minute
        begun = await read(one, "POST", path, body, most=most, idempotency_key=f"cut after {most}")
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        whole = await read(two, "POST", path, body, idempotency_key=f"cut after {most}")
        assert (rest.status, whole.status) == (200, 200)
        assert dialect.joined(events_of(begun, rest)) == dialect.joined(events_of(whole)), most
        assert numbers_of(begun, rest) == list(range(len(numbers_of(begun, rest))))
        said = dialect.read(dialect.joined(events_of(whole)))
        assert said.calls == [("get_weather", json.loads(ARGUMENTS)), ("calculate", {})]
        num_events, most = len(begun.events) + len(rest.events), most + 7
