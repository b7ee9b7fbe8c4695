"""A script on a connection that is read by hand: each call gets its own answer, or an error in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.store.counters.script_line import ScriptLine
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import DEFAULT_TIMEOUT_S, open_redis, translate_redis_errors
from tests.support.servers.server_certificates import Authority
from tests.support.servers.tls_proxy import tls_proxy

ECHO = "redis.call('INCR', KEYS[1]); return string.rep(ARGV[1], ARGV[2])"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as redis:
        yield redis


class Line:
    """A line whose answers are as long as they are wanted."""

    def __init__(self, redis: Redis, text: str = ECHO) -> None:
        self.script = ScriptLine(redis, RecordStoreConfig(), text)

    async def ask(self, word: str, times: int = 1) -> object:
        with translate_redis_errors():
            return await self.script([b"calls"], [word.encode(), b"%d" % times])


async def test_answers_of_every_length(redis: Redis) -> None:
    line = Line(redis)
    for times in (1, 0, 3, 1_000_000, 2):
        assert await line.ask("ab", times) == "ab" * times


async def test_each_call_has_its_own_keys_and_as_many_arguments_as_it_was_given(redis: Redis) -> None:
    text = "return table.concat(KEYS, '') .. '/' .. table.concat(ARGV, '')"
    script = ScriptLine(redis, RecordStoreConfig(), text, first=(b"1", b"2"))
    asked = [(["a"], "x"), (["a"], "xy"), (["a", "b"], "xy"), (["b"], "x"), (["a"], "")]
    found = [await script([key.encode() for key in keys], [word.encode() for word in args]) for keys, args in asked]
    assert found == ["a/12x", "a/12xy", "ab/12xy", "b/12x", "a/12"]
    await redis.script_flush()
    by_the_client, by_hand = [await script([b"a"], [b"x"]) for _ in range(2)]
    assert by_the_client == by_hand == "a/12x"


async def test_a_script_that_was_forgotten_and_a_connection_that_was_cut_are_no_errors(redis: Redis) -> None:
    line = Line(redis)
    assert await line.ask("a") == "a"
    await redis.script_flush()
    assert [await line.ask(word) for word in "bc"] == ["b", "c"]
    own = await redis.client_id()
    others = [row["id"] for row in await redis.client_list() if int(row["id"]) != own]
    assert others
    for other in others:
        await redis.client_kill_filter(_id=other)
    assert [await line.ask(word) for word in "de"] == ["d", "e"]
    assert await redis.get("calls") == "5"


async def test_an_error_is_told_and_the_next_call_is_answered(redis: Redis) -> None:
    line = Line(redis, "if ARGV[1] == 'x' then return redis.error_reply('READONLY it is') end return ARGV[1]")
    for _ in range(2):
        with pytest.raises(DependencyDown, match="takes no writes now"):
            await line.ask("x")
        assert await line.ask("a") == "a"


async def test_its_patience_is_that_of_its_client(redis_url: str) -> None:
    url = redis_url.partition("?")[0]
    async with open_redis(url) as redis, open_redis(f"{url}?socket_timeout=7") as other:
        assert [Line(client).script.timeout_s for client in (redis, other)] == [DEFAULT_TIMEOUT_S, 7.0]


async def test_an_answer_that_comes_too_late_is_not_that_of_the_next_call(redis: Redis) -> None:
    line = Line(redis)
    assert await line.ask("a") == "a"
    patience_s, line.script.timeout_s = line.script.timeout_s, 0.2
    await redis.client_pause(600)
    with pytest.raises(DependencyDown):
        await line.ask("late")
    line.script.timeout_s = patience_s
    await redis.ping()
    assert await line.ask("b") == "b"


async def test_a_call_that_was_left_leaves_no_answer_behind(redis: Redis) -> None:
    line = Line(redis)
    assert await line.ask("a") == "a"
    await redis.client_pause(300)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await line.ask("left")
    await redis.ping()
    assert await line.ask("b") == "b"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_over_tls_in_either_event_loop(redis_url: str, tmp_path: Path, run: Any) -> None:
    authority = Authority(tmp_path)
    authority.issue()

    async def asks() -> None:
        async with tls_proxy(urlsplit(redis_url).port or 0, authority.server_context()) as port:
            url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_path}"
            async with open_redis(url, timeout_s=10.0) as redis:
                line = Line(redis)
                for times in (1, 1_000_000, 2):
                    assert await line.ask("ab", times) == "ab" * times
                await redis.script_flush()
                assert await line.ask("c") == "c"

    run(asks())
