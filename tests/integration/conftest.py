"""Fixtures of tests against a real Redis-protocol server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.servers.redis_server import RedisServer, running_redis


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own, to kill and start again."""
    with running_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def _session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(_session_redis: RedisServer) -> str:
    """URL of a real server, empty at the start of the test."""
    with redis.Redis.from_url(_session_redis.url) as client:
        client.flushall()
    return _session_redis.url
