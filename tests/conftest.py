"""Fixtures shared by all tests: a real Redis-protocol server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own, to kill and start again."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def _session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def redis_url(_session_redis: RedisServer) -> str:
    """URL of a real server, empty at the start of the test."""
    with redis.Redis.from_url(_session_redis.url) as client:
        client.flushall()
    return _session_redis.url
