"""Hostile input on every computing route, beside a stream of another tenant that goes on; a new route needs a row.

Rows are told by what a route reads, as its own document says: one that has tools is offered 1,000 functions, one that
has messages is told of calls with arguments of 1 MB and with ids that collide, one that has a schema gets a nested one.
Every route gets deep JSON, cut UTF-8 and a body that stops.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import pytest

from stratos_gateway import wiring
from tests.support.promises import KEY
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world
from tests.support.worlds.raw_client import Client, head
from tests.support.worlds.socket_client import SocketClient, client_frame

CHAT, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE = "/v1/messages/count_tokens", "/tokenize"
MB = "x" * 2**20
DEPTH, NUM_FUNCTIONS = 10_000, 1_000
GAP_S = 0.5
"""Longest silence of the neighbour, one of whose tokens takes 10 ms; on a busy machine the figure is the machine's."""
BOUNDS = [pytest.param(30.0, id="order"), pytest.param(GAP_S, id="promise", marks=pytest.mark.promise)]
PLAIN: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    RESPONSE: {"input": "x", "max_output_tokens": 2},
    MESSAGE: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    COUNT: {"messages": [{"role": "user", "content": "x"}]},
    TOKENIZE: {"messages": [{"role": "user", "content": "x"}]},
    "/detokenize": {"tokens": [5]},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v1/embeddings": {"input": "x"},
    "/v1/moderations": {"input": "x"},
}


def openai_tool(schema: Any, number: int = 0) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}


def response_tool(schema: Any, number: int = 0) -> dict[str, Any]:
    return {"type": "function", "name": f"f{number}", "parameters": schema}


def message_tool(schema: Any, number: int = 0) -> dict[str, Any]:
    return {"name": f"f{number}", "input_schema": schema}


def chat_calls(arguments: str, count: int) -> dict[str, Any]:
    call = {"id": "same", "type": "function", "function": {"name": "f0", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "same", "content": "r"}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call] * count}, *[result] * count]
    return {"messages": turns}


def response_calls(arguments: str, count: int) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "same", "name": "f0", "arguments": arguments}
    return {"input": [*[call] * count, *[{"type": "function_call_output", "call_id": "same", "output": "r"}] * count]}


def message_calls(arguments: str, count: int) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "same", "name": "f0", "input": json.loads(arguments)}
    result = {"type": "tool_result", "tool_use_id": "same", "content": "r"}
    turns = [("user", "x"), ("assistant", [use] * count), ("user", [result] * count)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


TOOLS: Mapping[str, Callable[..., dict[str, Any]]] = {
    CHAT: openai_tool, RESPONSE: response_tool, MESSAGE: message_tool, COUNT: message_tool, TOKENIZE: openai_tool,
}  # fmt: skip
CALLS: Mapping[str, Callable[[str, int], dict[str, Any]]] = {
    CHAT: chat_calls, RESPONSE: response_calls, MESSAGE: message_calls, COUNT: message_calls, TOKENIZE: chat_calls,
}  # fmt: skip
DEEP = "@deep@"
"""Stands in a body for JSON of ``DEPTH`` levels, which no encoder here writes."""
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}},
    "structured_outputs": {"json": DEEP},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}},
    "output_config": {"format": {"type": "json_schema", "schema": DEEP}},
    "output_format": {"type": "json_schema", "schema": DEEP},
}
"""Fields that hold a schema, wherever a route has them."""


def documented(route: str) -> set[str]:
    """Fields of a route's body, as its document has them."""
    document = json.loads((resources.files("stratos_gateway.openapi") / "openapi.json").read_text())
    schema = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return set(schema["properties"])


@dataclass(frozen=True)
class Row:
    """One body, and the statuses of which it may have one."""

    name: str
    body: bytes
    allowed: tuple[int, ...] = (400,)


def rows(route: str) -> Iterator[Row]:
    """Everything hostile that a route reads."""
    plain, fields = {"model": "base", **PLAIN[route]}, documented(route)
    for deep in ('{"type":"array","items":' * DEPTH + "{}" + "}" * DEPTH, "[" * DEPTH + "]" * DEPTH):
        yield Row("deep JSON", raw({**plain, "metadata": {"a": DEEP}}, deep))
        for name in sorted(SCHEMAS.keys() & fields):
            yield Row(f"a deep {name}", raw({**plain, name: SCHEMAS[name]}, deep))
        if route in TOOLS:
            yield Row("a deep function", raw({**plain, "tools": [TOOLS[route](DEEP)]}, deep))
    whole = json.dumps({**plain, "user": "größer"}, ensure_ascii=False).encode()
    yield Row("cut UTF-8", whole[: whole.index(b"\xc3") + 1] + b'"}')
    if route in TOOLS:
        functions = [TOOLS[route]({"type": "object"}, number) for number in range(NUM_FUNCTIONS)]
        yield Row("1,000 functions", raw({**plain, "tools": functions}))
    if route in CALLS:
        counts = (200, 400) if route in (COUNT, TOKENIZE) else (400,)  # they count what is longer than any prompt
        yield Row("arguments of 1 MB", raw({**plain, **CALLS[route](json.dumps({"a": MB}), 1)}), counts)
        yield Row("ids that collide", raw({**plain, **CALLS[route]("{}", 100)}), (200, 400))


def raw(body: Mapping[str, Any], deep: str = "") -> bytes:
    return json.dumps(body).replace(json.dumps(DEEP), deep).encode()


@dataclass
class Neighbour:
    """The stream of another tenant, as its client hears it."""

    gaps: list[float] = field(default_factory=list)
    is_broken: bool = False

    async def listen(self, world: World) -> None:
        body = raw({"model": "base", "prompt": "x", "max_tokens": 100_000, "stream": True})
        async with Client(world) as client:
            client.writer.write(head(len(body), OTHER_KEY) + body)
            last_s = None
            while line := await client.reader.readline():
                if line.startswith(b"data: "):
                    now_s = time.monotonic()
                    self.gaps += [] if last_s is None else [now_s - last_s]
                    last_s = now_s
                    self.is_broken |= b'"error"' in line or b"[DONE]" in line
        self.is_broken = True


@asynccontextmanager
async def undisturbed(world: World) -> AsyncIterator[Neighbour]:
    """A neighbour that is heard before, all the time and afterwards."""
    neighbour = Neighbour()
    task = asyncio.create_task(neighbour.listen(world))
    await eventually(lambda: len(neighbour.gaps) > 3, "it streams")
    yield neighbour
    count = len(neighbour.gaps)
    await eventually(lambda: len(neighbour.gaps) > count + 3, "it still streams")
    assert not neighbour.is_broken
    task.cancel()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world(http={"max_body_bytes": 4 << 20, "body_timeout_s": 0.3}) as made:
        made.worker.script, made.worker.step_s = (lambda submit, choice: [9] * 3000), 0.01
        yield made


async def test_every_computing_route_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found, build = set[str](), wiring.build_endpoints

    def noted(*arguments: Any) -> Any:
        endpoints = build(*arguments)
        found.update(endpoints)
        return endpoints

    monkeypatch.setattr(wiring, "build_endpoints", noted)
    async with gateway_world():
        assert found == set(PLAIN)
    for route in found:
        assert ("tools" in documented(route)) == (route in TOOLS) == (route in CALLS), route
        assert len(list(rows(route))) >= 3


@pytest.mark.parametrize("most_s", BOUNDS)
async def test_what_is_hostile_is_refused_and_disturbs_no_other(
    world: World, most_s: float, record_property: Callable[[str, object], None]
) -> None:
    async with undisturbed(world) as neighbour:
        for route in PLAIN:
            for row in rows(route):
                answer = await world.http.post(route, content=row.body)
                where = f"{route}: {row.name}: {answer.status_code} {answer.text[:200]}"
                assert answer.status_code in row.allowed, where
                assert answer.status_code == 200 or answer.json()["error"]["message"], where
    longest = max(neighbour.gaps)
    if most_s == GAP_S:
        record_property(KEY, f"{longest:7.3f} s of {GAP_S} s: silence of a stream beside hostile input")
    assert longest < most_s, f"the neighbour heard nothing for {longest:.3f} s"


async def test_a_body_that_stops_is_ended_on_every_route(world: World) -> None:
    async with undisturbed(world):
        statuses = await asyncio.gather(*(stopped(world, route) for route in PLAIN))
        assert dict(zip(PLAIN, statuses, strict=True)) == dict.fromkeys(PLAIN, 408)


async def stopped(world: World, route: str) -> int:
    """Status of a request whose body stops."""
    async with Client(world) as client:
        client.writer.write(head(100, path=route) + b'{"model"')
        return (await client.answer())[0]


@pytest.mark.parametrize("most_s", BOUNDS)
async def test_a_socket_reads_all_of_it_as_its_route_does(
    world: World, most_s: float, record_property: Callable[[str, object], None]
) -> None:
    opening = b'{"type": "response.create", '
    # this client masks slowly, and in the same loop; cut UTF-8 ends the connection, below
    frames = [(row, client_frame(opening + row.body[1:])) for row in rows(RESPONSE) if row.name != "cut UTF-8"]
    async with undisturbed(world) as neighbour, SocketClient(world) as socket:
        for row, frame in frames:
            socket.writer.write(frame)
            last = (await socket.events())[-1]
            assert last.get("status", 200) in row.allowed, f"{row.name}: {last}"
        socket.writer.write(client_frame(b'{"type": "gr\xc3"}'))
        assert await socket.event() is None
        assert socket.closed is not None
        assert socket.closed[0] == 1007
    if most_s == GAP_S:
        record_property(KEY, f"{max(neighbour.gaps):7.3f} s of {GAP_S} s: silence of a stream beside a hostile socket")
    assert max(neighbour.gaps) < most_s


async def test_a_socket_that_sends_a_frame_a_minute_is_closed() -> None:
    """Each minute is a tenth of the time that a message may take."""
    async with gateway_world(http={"body_timeout_s": 0.3}, sockets={"idle_s": 5.0}) as world:
        world.worker.script, world.worker.step_s = (lambda submit, choice: [9] * 3000), 0.01
        async with undisturbed(world), SocketClient(world) as socket:
            ended = asyncio.create_task(socket.event())
            socket.writer.write(client_frame(b'{"type": ', is_last=False))
            while not ended.done():
                await asyncio.wait([ended], timeout=0.03)
                socket.writer.write(client_frame(b" ", 0, is_last=False))
            assert ended.result() is None
            assert socket.closed is not None
            assert socket.closed[0] == 1008
