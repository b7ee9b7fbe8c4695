"""Two gateways of one installation over a Redis, whose workers say the same; and a client that comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from stratos.core.tenancy.plan import PREMIUM
from stratos.rpc.clients.gateway import fetch_snapshot
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import say

TEXT = "the quick brown fox jumps over the lazy dog and runs away from a very slow turtle that sings"
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60},
    "/v1/completions": {"prompt": "go", "max_tokens": 60},
    "/v1/responses": {"input": "go", "max_output_tokens": 60},
    "/v1/messages": {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60},
}
"""Body of a stream by its route."""


@dataclass
class Event:
    """One event of a stream."""

    id: str
    data: str
    text: str
    """As it came, without its id."""


@dataclass
class Read:
    """Part of a stream that one connection got."""

    status: int
    headers: httpx.Headers
    events: list[Event] = field(default_factory=list)

    @property
    def stream(self) -> str:
        """Id of the stream."""
        return self.headers["x-stratos-stream"]

    def take(self, text: str) -> str:
        """Add the whole events of a text; returns what is left of it."""
        whole, end, rest = text.rpartition("\n\n")
        self.events += events_in(whole + end)
        return rest

    @property
    def last_id(self) -> str:
        """Id of the last event that has one."""
        return next((event.id for event in reversed(self.events) if event.id), "")


def events_in(text: str) -> list[Event]:
    """Whole events of a text that may be cut."""
    found = []
    for block in text.split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields and fields.get("event") != "ping":
            shown = "\n".join(line for line in lines if not line.startswith(("id: ", "retry: ")))
            found.append(Event(fields.get("id", ""), fields.get("data", ""), shown))
    return found


async def read(
    world: AdminWorld, method: str, path: str, body: Any = None, *, by: str = "user", most: int = 0, **headers: str
) -> Read:
    """Ask, and read the stream to its end, or leave after so many events."""
    sent = {"authorization": f"Bearer {world.keys[by]}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    async with world.public.stream(method, path, json=body, headers=sent) as answer:
        found, text, rest = Read(answer.status_code, answer.headers), "", ""
        async for part in answer.aiter_text():
            text += part
            rest = found.take(rest + part)
            if most and len(found.events) >= most:
                found.events = found.events[:most]
                break
        if answer.status_code != 200:
            found.events = [Event("", text, text)]
        return found


def texts(*reads: Read) -> list[str]:
    """Events of several connections in turn."""
    return [event.text for found in reads for event in found.events]


def contents(*reads: Read) -> dict[Any, Any]:
    """What several connections were told in turn: the text of each choice, and all other events.

    Two runs of one request tell the same in other pieces, under other ids and times.
    """
    found: dict[Any, Any] = {"others": []}
    numbers = []
    for event in (event for part in reads for event in part.events):
        if event.data == "[DONE]":
            found["others"].append(event.data)
            continue
        value = json.loads(event.data)
        if "sequence_number" in value:
            numbers.append(value.pop("sequence_number"))
        choice, text = _text_in(value)
        found[choice] = found.get(choice, "") + text
        if value:
            found["others"].append(_scrubbed(value))
    assert numbers == list(range(len(numbers)))
    found["others"].sort(key=str)
    return found


_HIDDEN = ("id", "created", "created_at", "completed_at", "item_id", "cached_tokens", "cache_read_input_tokens",
           "input_tokens")  # fmt: skip


def _text_in(value: dict[str, Any]) -> tuple[Any, str]:
    """Choice and text of an event, which is taken out; all that is left of events of mere text is the same."""
    if value.get("type") in ("response.output_text.delta", "content_block_delta"):
        text = value["delta"] if isinstance(value["delta"], str) else value["delta"]["text"]
        value.clear()
        return 0, text
    [choice, *_] = value.get("choices") or [{}]
    if "text" in choice:
        text, choice["text"] = choice["text"], ""
    else:
        text = choice.get("delta", {}).pop("content", "")
    index = choice.get("index", 0)
    if choice and choice["finish_reason"] is None and "role" not in choice.get("delta", {}):
        value.clear()
    return index, text


def _scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: None if name in _HIDDEN else _scrubbed(part) for name, part in value.items()}
    return [_scrubbed(part) for part in value] if isinstance(value, list) else value


def code_of(found: Read) -> tuple[int, str]:
    """Status and code of an error."""
    return found.status, json.loads(found.events[0].data)["error"]["code"]


async def is_known(world: AdminWorld) -> bool:
    """The gateway has the tenants' data keys."""
    return (await fetch_snapshot(world.service.address)).decode().replace("\\", "").count('"data_key"') >= 2


@asynccontextmanager
async def stream_worlds(
    redis_url: str,
    folder: Path,
    num: int = 2,
    first: Mapping[str, Any] = MappingProxyType({}),
    lease_s: float = 0.6,
    keepalive_s: float = 0.02,
    streams: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> AsyncIterator[list[AdminWorld]]:
    """Start them; ``first`` are settings of the first one's records, ``streams`` of all records, ``more`` of all.

    A busy machine may hold all of them up for as long as their leases last: then one takes over from another.
    Tenants have no rates: a first request waits a second for its slice of one, and is refused where Redis is slower.
    """
    async with AsyncExitStack() as stack:
        found: list[AdminWorld] = []
        for number in range(num):
            values: dict[str, Any] = {
                "platform_key": "22" * 32,
                "snapshot": {"poll_s": 0.02},
                "object_store": {"url": f"file://{folder}/blobs"},
                "http": {"sse_keepalive_s": keepalive_s},
                "ledger": {"interval_s": 0.05, "usage_reads_per_min": 6000, "spool_path": folder / f"spool-{number}"},
                "streams": {
                    "flush_s": 0.01,
                    "follow_s": 0.02,
                    "lease_s": lease_s,
                    "call_s": 60.0,
                    **streams,
                    **({} if number else first),
                },
            }
            world = await stack.enter_async_context(admin_world(redis_url, folder, PREMIUM.name, **values, **more))
            world.worker.script = say(TEXT)
            found.append(world)
        for world in found:
            await eventually(partial(is_known, world), "the tenants have data keys")
        yield found


def num_submits(worlds: Sequence[AdminWorld]) -> int:
    """Attempts that workers got."""
    return sum(len(world.worker.submits) for world in worlds)
