"""Redis that is away, silent, locked or wrongly addressed."""

from __future__ import annotations

import asyncio
import socket

import pytest
from redis.exceptions import ResponseError

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.redis import DEFAULT_TIMEOUT_S, open_redis, translate_redis_errors
from tests.support.servers.redis_server import RedisServer


async def test_a_silent_server_is_given_up_within_a_second() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with open_redis(f"redis://127.0.0.1:{silent.getsockname()[1]}/0") as client:
            with pytest.raises(DependencyDown, match="does not answer"), translate_redis_errors():
                await client.ping()
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was not asked twice
            silent.accept()
        assert DEFAULT_TIMEOUT_S < 1.0


async def test_pooled_connections_of_before_a_restart_do_no_harm(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url, timeout_s=60) as client:
        await asyncio.gather(*(client.set(f"k{i}", i) for i in range(5)))
        redis_server.kill()
        redis_server.start()
        with translate_redis_errors():
            assert await asyncio.gather(*(client.get(f"k{i}") for i in range(5))) == list("01234")


async def test_a_wrong_password_is_named(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as client:
        await client.config_set("requirepass", "right")
    async with open_redis(redis_server.url.replace("redis://", "redis://:wrong@")) as client:
        with pytest.raises(DependencyDown, match="refuses the user or password"), translate_redis_errors():
            await client.ping()


@pytest.mark.parametrize("state", ["too few replicas", "a replica that lost its master"])
async def test_a_server_that_answers_nothing_now_is_down_and_no_cluster(redis_server: RedisServer, state: str) -> None:
    """Each ended the root tasks of a gateway, or was an internal error to who wrote."""
    async with open_redis(redis_server.url) as client:
        if state == "too few replicas":
            await client.config_set("min-replicas-to-write", "1")
        else:
            await client.config_set("replica-serve-stale-data", "no")
            await client.execute_command("REPLICAOF", "127.0.0.1", "1")
        script = client.register_script("return redis.call('SET', KEYS[1], ARGV[1])")
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.set("k", "v")
            for command in (client.set("k", "v"), script(keys=["k"], args=["v"]), pipeline.execute()):
                with pytest.raises(DependencyDown), translate_redis_errors():
                    await command


@pytest.mark.parametrize(
    "text", ["MISCONF Redis is configured to save snapshots", "BUSY Redis is busy running a script"]
)
def test_a_server_with_a_full_disk_or_a_long_script_is_down(text: str) -> None:
    with pytest.raises(DependencyDown), translate_redis_errors():
        raise ResponseError(text)


async def test_a_wrong_command_stays_a_bug(redis_url: str) -> None:
    async with open_redis(redis_url) as client:
        await client.set("text", "x")
        with pytest.raises(ResponseError), translate_redis_errors():
            await client.hget("text", "field")


def test_a_bad_url_is_refused() -> None:
    with pytest.raises(BadRequest, match="Redis URL"):
        open_redis("http://127.0.0.1")
