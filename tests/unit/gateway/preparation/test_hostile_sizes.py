"""Bodies of legal size that are all work: each is refused by its counts, or prepared beside the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from stratos.core.requests.limits import MAX_STOP_STRINGS
from tests.support.worlds.gateway_routes import full_app

COMPLETION, CHAT, EMBEDDING = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
RESPONSE = "/v1/responses"
MESSAGE, TOKENIZE = "/v1/messages", "/tokenize"
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}] * 250}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
LONG = json.dumps({"a": "x" * 10**6})
FUNCTION = {"type": "function", "name": "f"}
PART = {"type": "text", "text": ""}
HELD_S = 0.01
"""Longest time for which one request's input may hold the event loop, or the interpreter."""
HOSTILE = {
    "a million token ids": (COMPLETION, {"prompt": [1] * 900_000}, 400, "too_many_values"),
    "more token ids than a prompt has": (COMPLETION, {"prompt": [1] * 300_000}, 400, "context_length_exceeded"),
    "many prompts of many ids": (COMPLETION, {"prompt": [[1] * 4090] * 64}, 503, "overloaded"),
    "many texts": (COMPLETION, {"prompt": ["a"] * 100_000}, 400, "invalid_request"),
    "many inputs of many ids": (EMBEDDING, {"input": [[1] * 4090] * 70}, 503, "overloaded"),
    "stop strings": (COMPLETION, {"prompt": "x", "stop": ["a"] * 100_000}, 400, "invalid_request"),
    "empty objects": (COMPLETION, {"prompt": "x", "metadata": [{}] * 300_000}, 400, "too_many_values"),
    "fields": (
        COMPLETION,
        {"prompt": "x", "metadata": {f"{n:x}": 1 for n in range(150_000)}},
        400,
        "too_many_values",
    ),
    "messages": (CHAT, {"messages": [{"role": "user", "content": ""}] * 300}, 503, "overloaded"),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [PART] * 250}] * 60}, 400, "invalid_request"),
    "items": (RESPONSE, {"input": [{"role": "user", "content": ""}] * 300}, 503, "overloaded"),
    "parts of items": (
        RESPONSE,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 250}] * 60},
        400,
        "invalid_request",
    ),
    "calls with one id": (
        RESPONSE,
        {"input": [CALL] * 100},
        503,
        "overloaded",
    ),
    "arguments": (RESPONSE, {"input": [{**CALL, "arguments": LONG}]}, 400, "context_length_exceeded"),
    "functions": (RESPONSE, {"input": "x", "tools": [FUNCTION] * 1000}, 400, "invalid_request"),
    "blocks": (MESSAGE, {"messages": [{"role": "user", "content": [PART] * 250}] * 60}, 400, "invalid_request"),
    "results of many blocks": (
        MESSAGE,
        {"messages": [{"role": "user", "content": [RESULT] * 25}]},
        400,
        "invalid_request",
    ),
    "neighbours": (
        MESSAGE,
        {"messages": [{"role": "user", "content": "x" * 1900}] * 1000},
        400,
        "context_length_exceeded",
    ),
    "uses with one id": (MESSAGE, {"messages": [{"role": "assistant", "content": [USE] * 100}]}, 503, "overloaded"),
    "an input": (
        MESSAGE,
        {"messages": [{"role": "assistant", "content": [{**USE, "input": {"a": "x" * 10**6}}]}]},
        400,
        "context_length_exceeded",
    ),
    "tools": (
        MESSAGE,
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}] * 1000},
        400,
        "invalid_request",
    ),
    "letters to count": (TOKENIZE, {"prompt": "\x01" * 300_000}, 400, "context_length_exceeded"),
    "ids to tell": ("/detokenize", {"tokens": [1] * 250_000}, 400, "context_length_exceeded"),
    "a text": (COMPLETION, {"prompt": "word " * 4000}, 503, "overloaded"),
    "a text of marks": (CHAT, {"messages": [{"role": "user", "content": "<|im_end|>" * 700}]}, 503, "overloaded"),
}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    transport = httpx.ASGITransport(full_app(2 << 20))
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as made:
        yield made


async def longest_hold_s(ended: asyncio.Event) -> float:
    """Longest time between two turns of the event loop that want to follow at once."""
    longest, last_s = 0.0, time.monotonic()
    while not ended.is_set():
        await asyncio.sleep(0.0005)
        now_s = time.monotonic()
        longest, last_s = max(longest, now_s - last_s), now_s
    return longest


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_all_work_is_told_apart_by_its_counts(client: httpx.AsyncClient, name: str) -> None:
    route, fields, status, code = HOSTILE[name]
    answer = await client.post(route, content=json.dumps({"model": "base", **fields}, separators=(",", ":")))
    assert answer.status_code == status, answer.text[:300]
    assert answer.json()["error"]["code"] == code


@pytest.mark.promise
@pytest.mark.parametrize("name", HOSTILE)
async def test_no_input_holds_the_event_loop(client: httpx.AsyncClient, name: str) -> None:
    route, fields, *_ = HOSTILE[name]
    body = json.dumps({"model": "base", **fields}, separators=(",", ":")).encode()
    await client.post(route, content=body)  # threads and tables are there
    held = []
    for _ in range(3):
        ended = asyncio.Event()
        watch = asyncio.create_task(longest_hold_s(ended))
        await asyncio.sleep(0.01)
        await client.post(route, content=body)
        ended.set()
        held.append(await watch)
    assert min(held) < HELD_S, f"{name}: held for {[f'{1000 * s:.1f} ms' for s in held]}"


@pytest.mark.parametrize(
    "metadata",
    [
        {str(n): "x" for n in range(17)},
        {"k" * 65: "x"},
        {"k": "x" * 513},
        {"k": 1},
        {"k": {"deep": "x"}},
        ["x"],
        "x",
    ],
)
async def test_metadata_has_bounds(client: httpx.AsyncClient, metadata: object) -> None:
    answer = await client.post(COMPLETION, json={"model": "base", "prompt": "x", "metadata": metadata})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata")


async def test_what_is_within_bounds_is_taken(client: httpx.AsyncClient) -> None:
    good = {"metadata": {"k" * 64: "x" * 512, **{str(n): "" for n in range(15)}}, "stop": ["a"] * MAX_STOP_STRINGS}
    answer = await client.post(COMPLETION, json={"model": "base", "prompt": "x", **good})
    assert answer.json()["error"]["code"] == "overloaded", "the router is full"
