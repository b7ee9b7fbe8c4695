"""Shared by all tests: a real Redis-protocol server, and interpreted Triton kernels where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

from tests.support.redis_server import RedisServer

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # counts at the first import of Triton, and peft imports it

# A busy machine is no counterexample: what has to be fast is measured by tests of its own.
hypothesis.settings.register_profile("stratos", deadline=None)
hypothesis.settings.load_profile("stratos")


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
