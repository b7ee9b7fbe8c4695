"""A Redis as production has it: TLS, user and password, and a Sentinel that fails over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stratos.common.errors import DependencyDown
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.redis import open_redis, translate_redis_errors
from tests.support.servers.record_stores import following, marked_store
from tests.support.servers.redis_sentinel import SentinelGroup, binaries, sentinel_group
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.server_certificates import Authority
from tests.support.servers.tls_proxy import tls_proxy
from tests.support.waiting import eventually

PATIENCE_S = 10.0
"""On a crowded machine a handshake may take longer than a caller would wait."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue()
    return made


@pytest.fixture
async def tls_port(redis_server: RedisServer, authority: Authority) -> AsyncIterator[int]:
    """Where a server with one user more, and a password, answers over TLS."""
    port = urlsplit(redis_server.url).port
    assert port is not None
    async with open_redis(redis_server.url) as client:
        await client.acl_setuser("gateway", enabled=True, passwords=["+s3:cret/"], categories=["+@all"], keys=["*"])
        await client.acl_setuser("default", enabled=False)
    async with tls_proxy(port, authority.server_context()) as found:
        yield found


async def test_tls_with_user_and_password(tls_port: int, authority: Authority, tmp_path: Path) -> None:
    url = f"rediss://gateway:s3%3Acret%2F@127.0.0.1:{tls_port}/0?ssl_ca_certs={authority.ca_path}"
    async with open_redis(url, timeout_s=PATIENCE_S) as client:
        store = await marked_store(client, tmp_path / "objects")
        key = await store.keys.create_key("acme", "laptop")
    async with following(url) as gateway:
        assert (await gateway.keys.authenticate(key)).name == "acme"


async def test_a_wrong_password_an_unknown_authority_and_plain_text_are_told_apart(
    tls_port: int, authority: Authority, tmp_path: Path
) -> None:
    place = f"127.0.0.1:{tls_port}/0"
    known = f"?ssl_ca_certs={authority.ca_path}"
    for url, reason in (
        (f"rediss://gateway:wrong@{place}{known}", "refuses the user or password"),
        (f"rediss://gateway:s3%3Acret%2F@{place}", "certificate of Redis is not accepted"),
        (f"rediss://gateway:s3%3Acret%2F@localhost:{tls_port}/0{known}", "certificate of Redis is not accepted"),
        (f"redis://gateway:s3%3Acret%2F@{place}", "does not answer"),
    ):
        async with open_redis(url, timeout_s=PATIENCE_S) as client:
            with pytest.raises(DependencyDown, match=reason), translate_redis_errors():
                await client.ping()


@pytest.fixture(params=binaries())
async def group(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SentinelGroup]:
    async with sentinel_group(binaries()[request.param], tmp_path) as made:
        yield made


async def test_a_followed_snapshot_survives_a_failover(group: SentinelGroup, tmp_path: Path) -> None:
    async with open_redis(group.url, timeout_s=PATIENCE_S) as client, following(group.url) as gateway:
        await patiently(client.ping)  # from here on it has a connection
        store = await marked_store(client, tmp_path / "objects")
        before = await store.keys.create_key("acme", "before")
        await eventually(lambda: gateway.follower.is_following, "it follows")
        await group.until_replicated()
        group.kill_first()
        await eventually(lambda: gateway.snapshot.state is SnapshotState.STALE, "the master's death is seen")
        assert (await gateway.keys.authenticate(before)).name == "acme"
        await eventually(lambda: group.is_master(group.second), "the replica was promoted")
        await eventually(lambda: gateway.follower.is_following, "the new master is followed")
        after = await patiently(lambda: store.keys.create_key("acme", "after"))
        assert (await patiently(lambda: gateway.keys.authenticate(after))).name == "acme"
        group.start_first_again()  # it takes itself for the master, which the sentinel knows better
        async with open_redis(group.url, timeout_s=PATIENCE_S) as late:
            assert await patiently(lambda: late.set("probe", "new"))
        assert await group.get(group.second, "probe") == "new"
        await eventually(lambda: gateway.follower.is_following, "it still follows")


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a call that is repeated, as its error says, while no master is known."""
    while True:
        try:
            with translate_redis_errors():
                return await call()
        except DependencyDown:
            await asyncio.sleep(0.05)


async def test_without_a_sentinel_that_answers_it_is_told_within_a_second() -> None:
    async with open_redis("redis+sentinel://127.0.0.1:9,127.0.0.1:10/main") as client:
        with pytest.raises(DependencyDown, match="no Redis Sentinel names a master"), translate_redis_errors():
            await client.ping()
