"""A stream whose gateway stands still, is cut off, or leaves: another one takes it over, and there is one output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from stratos.rpc.clients.gateway import fetch_snapshot
from tests.integration.gateway.streams.test_files import call
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


async def test_a_whole_answer_that_was_taken_over_comes_again(redis_url: str, tmp_path: Path) -> None:
    """Its worker's tokens come one by one at the gateway that takes it over, whose record says why they ended."""
    async with stream_worlds(redis_url, tmp_path, first={"flush_s": 3.0}) as [one, two]:
        one.worker.hang_after, two.worker.step_s = 4, 0.01
        body = BODY | {"stream": False}

        async def ask(world: AdminWorld) -> httpx.Response:
            return await call(world, "POST", PATH, json=body, headers={"idempotency-key": "whole"})

        begun = asyncio.create_task(ask(one))
        await eventually(lambda: bool(one.worker.submits), "it runs at the first gateway")
        answers = [await ask(world) for world in (two, two, one)]
        assert [answer.status_code for answer in answers] == [200] * 3, answers[1].text
        assert len({answer.content for answer in answers}) == 1
        assert len(two.worker.submits) == 1
        assert (await begun).json()["error"]["code"] == "stream_moved"


async def let_stay(worlds: list[AdminWorld], detach_s: int) -> None:
    """Streams of the tenant go on for so long without their client."""
    changed = {"plan": "premium", "overrides": {"detach_s": detach_s}}
    assert (await worlds[0].call("PUT", "/tenants/acme", changed)).status_code == 200

    async def is_known() -> bool:
        shown = [(await fetch_snapshot(world.service.address)).decode() for world in worlds]
        return all(f'"detach_s":{detach_s}' in text.replace("\\", "").replace(" ", "") for text in shown)

    await eventually(is_known, "the plan is known")


async def test_a_stream_that_may_stay_goes_on_without_its_client(redis_url: str, tmp_path: Path) -> None:
    """It is whole before the client comes back, and the other gateway shows it."""
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as [one, two]:
        expected = contents(await read(two, "POST", PATH, BODY, idempotency_key="whole"))
        await let_stay([one, two], 600)
        one.worker.step_s = 0.02
        begun = await read(one, "POST", PATH, BODY, most=3, idempotency_key="left")
        await eventually(lambda: not one.worker.running, "the stream has ended")
        rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
        assert contents(begun, rest) == expected
        assert not one.worker.cancels
        assert num_submits([one, two]) == 2, "each is computed once"


@pytest.mark.parametrize("detach_s", [0, 1])
async def test_a_client_that_never_comes_back_costs_its_time(redis_url: str, tmp_path: Path, detach_s: int) -> None:
    """The whole answer would take longer than anyone waits here."""
    async with stream_worlds(redis_url, tmp_path, num=1, lease_s=600.0) as [one]:
        await let_stay([one], detach_s)
        one.worker.step_s = 0.1
        one.worker.script = lambda submit, choice: [7] * 60_000
        begun = time.monotonic()
        await read(one, "POST", PATH, {**BODY, "max_tokens": 4000}, most=2, idempotency_key="left")
        await eventually(lambda: one.worker.cancels, "the worker is told to stop")
        assert time.monotonic() - begun >= detach_s


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
