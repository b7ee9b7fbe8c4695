"""Clients that know nothing of records: the retries of an SDK and of curl, and an ``EventSource``, behind a cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from tests.support.servers.cutting_proxy import Cut, cutting_proxy
from tests.support.servers.plain_http import plain_client, plain_openai
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.event_source import EventSource
from tests.support.worlds.stream_world import ASKED, Read, contents, events_in, num_submits, read, stream_worlds

SAID = {"model": "base", "messages": [{"role": "user", "content": "go"}], "max_tokens": 60, "temperature": 1.0}
PATHS = sorted(ASKED)
WHOLE = {True: b"[DONE]", False: b'"usage"'}
"""What stands at the end of an answer that is a stream, or none."""


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


def addresses(worlds: Sequence[AdminWorld]) -> list[str]:
    return [world.service.http_address for world in worlds]


async def is_billed_once(world: AdminWorld) -> bool:
    usage = await world.public.get("/v1/usage", headers={"authorization": f"Bearer {world.keys['user']}"})
    num_tokens = len(world.worker.script(world.worker.submits[0], 0))
    return [(row["requests"], row["output_tokens"]) for row in usage.json()["data"]] == [(1, num_tokens)]


async def said_by(client: AsyncOpenAI, *, is_stream: bool) -> str:
    """The answer's text."""
    options = {**SAID, "extra_headers": {"Idempotency-Key": "sdk"}}
    if not is_stream:
        return (await client.chat.completions.create(**options)).choices[0].message.content or ""
    stream = await client.chat.completions.create(**options, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_retry_of_an_sdk_gets_the_answer_of_its_lost_request(
    worlds: list[AdminWorld], *, is_stream: bool
) -> None:
    """The first gateway has answered all of it, and none of that arrived; the second one is asked then."""
    lost = [Cut(WHOLE[is_stream], is_shown=False)]
    async with cutting_proxy(addresses(worlds), lost) as url:
        plain = plain_openai(url, worlds[0].keys["user"], LIMIT_S)
        client = plain.with_options(max_retries=2)
        try:
            said = await said_by(client, is_stream=is_stream)
        finally:
            await plain.close()
    assert said.startswith("the quick brown fox")
    assert num_submits(worlds) == len(worlds[0].worker.submits) == 1
    await eventually(lambda: is_billed_once(worlds[0]), "it is billed once")


async def test_without_a_key_a_retry_is_a_request_of_its_own(worlds: list[AdminWorld]) -> None:
    async with cutting_proxy(addresses(worlds), [Cut(WHOLE[False], is_shown=False)]) as url:
        plain = plain_openai(url, worlds[0].keys["user"], LIMIT_S)
        try:
            await plain.with_options(max_retries=2).chat.completions.create(**SAID)
        finally:
            await plain.close()
    assert num_submits(worlds) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_an_event_source_gets_each_event_once(worlds: list[AdminWorld], path: str) -> None:
    """Its connections are cut in turn; once it has all, it is told to come back no more."""
    body = {"model": "base", "stream": True, "temperature": 1.0, **ASKED[path]}
    begun = await read(worlds[0], "POST", path, body, idempotency_key="page")
    waits: list[int] = []

    async def wait(retry_ms: int) -> None:
        waits.append(retry_ms)

    cuts = [Cut(b"\ndata: ", times) for times in (2, 5, 3)]
    headers = {"authorization": f"Bearer {worlds[0].keys['user']}", "connection": "close"}
    async with cutting_proxy(addresses(worlds), cuts) as url, plain_client(url, headers=headers) as http:
        source = EventSource(http, f"/v1/streams/{begun.stream}", wait)
        async with asyncio.timeout(LIMIT_S):
            messages = [message async for message in source.messages()]
    assert source.statuses[-1] == 204
    assert source.statuses.count(200) == len(cuts) + 1
    assert set(waits) == {1000}, "the stream says when to come back"
    ids = [message.id for message in messages]
    assert len(set(ids)) == len(ids), "no event comes twice"
    shown = "".join(f"event: {kind}\nid: {name}\ndata: {data}\n\n" for kind, data, name in messages)
    assert contents(Read(200, httpx.Headers(), events_in(shown))) == contents(begun)
    assert num_submits(worlds) == 1


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_retry_of_curl_gets_the_answer_of_its_lost_request(
    worlds: list[AdminWorld], tmp_path: Path, *, is_stream: bool
) -> None:
    """Its file has one answer: what came before the cut is dropped."""
    out, key = tmp_path / "answer", worlds[0].keys["user"]
    lost = [Cut(b"fox"), Cut(WHOLE[is_stream], is_shown=False)] if is_stream else [Cut(b"fox", is_shown=False)]
    async with cutting_proxy(addresses(worlds), lost) as url:
        curl = await asyncio.create_subprocess_exec(
            "curl", "-sSN", "--noproxy", "*", "--retry", "3", "--retry-delay", "1", "--retry-all-errors",
            "-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json",
            "-H", "Idempotency-Key: curl", "-d", json.dumps({**SAID, "stream": is_stream}),
            "-o", str(out), f"{url}/v1/chat/completions",
        )  # fmt: skip
        assert await curl.wait() == 0
    text = out.read_text()
    if is_stream:
        assert contents(Read(200, httpx.Headers(), events_in(text)))[0].startswith("the quick brown fox jumps")
        assert text.count("[DONE]") == 1
    else:
        assert json.loads(text)["choices"][0]["message"]["content"].startswith("the quick brown fox")
    await eventually(lambda: is_billed_once(worlds[0]), "it is billed once")
