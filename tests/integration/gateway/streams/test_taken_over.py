"""A stream whose gateway stands still, is cut off, or leaves: another one takes it over, and there is one output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.support.servers.plain_http import plain_openai
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, code_of, contents, num_submits, read, stream_worlds

PATH = "/v1/completions"
BODY = {"model": "base", "stream": True, "temperature": 1.0, **ASKED[PATH]}


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path) as found:
        yield found


async def test_a_second_connection_follows_the_first_one_at_another_gateway(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as worlds:
        worlds[0].worker.step_s = 0.02
        first, second = await asyncio.gather(
            *(read(world, "POST", PATH, BODY, idempotency_key="both") for world in worlds)
        )
        assert contents(first) == contents(second)
        assert first.stream == second.stream
        assert num_submits(worlds) == 1


async def test_a_gateway_that_writes_too_late_is_fenced(redis_url: str, tmp_path: Path) -> None:
    """It writes less often than its lease lasts, as if it stood still or were cut off from Redis."""
    async with stream_worlds(redis_url, tmp_path, first={"flush_s": 3.0}) as [one, two]:
        one.worker.hang_after = 4
        begun = asyncio.create_task(read(one, "POST", PATH, BODY, idempotency_key="fenced"))
        await eventually(lambda: bool(one.worker.submits), "the stream runs at the first gateway")
        other = await read(two, "POST", PATH, BODY, idempotency_key="fenced")
        assert other.status == 200
        assert [submit.attempt for submit in two.worker.submits] == [1000]
        assert two.worker.submits[0].request_id == one.worker.submits[0].request_id
        assert two.worker.submits[0].seed == one.worker.submits[0].seed
        ended = await begun
        assert code_of(Read(200, ended.headers, ended.events[-1:])) == (200, "stream_moved")


async def test_a_gateway_that_leaves_gives_its_streams_up(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    expected = contents(await read(two, "POST", PATH, BODY, idempotency_key="whole"))
    one.worker.step_s, one.worker.hang_after = 0.01, 6
    begun = await read(one, "POST", PATH, BODY, most=4, idempotency_key="leaves")
    rest = await read(two, "POST", PATH, BODY, idempotency_key="leaves", last_event_id=begun.last_id)
    found = contents(begun, rest)
    assert found[0] == expected[0]
    assert len(found["others"]) == len(expected["others"])


async def test_an_sdk_reads_a_recorded_stream_and_its_comments(redis_url: str, tmp_path: Path) -> None:
    """A comment after an id must not be an event to it."""
    async with stream_worlds(redis_url, tmp_path, num=1) as [world]:
        world.worker.step_s = 0.05
        client = plain_openai(f"http://{world.service.http_address}", world.keys["user"], LIMIT_S)
        texts = []
        try:
            stream = await client.chat.completions.create(
                model="base", messages=[{"role": "user", "content": "go"}], stream=True, max_tokens=60,
                extra_headers={"Idempotency-Key": "sdk"},
            )  # fmt: skip
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        except openai.OpenAIError as error:
            pytest.fail(str(error))
        finally:
            await client.close()
        assert "".join(texts).startswith("the quick brown fox")
