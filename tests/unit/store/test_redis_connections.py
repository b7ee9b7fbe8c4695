"""Connections to Redis are made on the event loop, beside streams."""

from __future__ import annotations

import importlib.metadata

import pytest

from stratos.store.redis import open_redis


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+sentinel://127.0.0.1:1/main/0"])
async def test_a_new_connection_reads_nothing_of_the_installation(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> str:
        raise AssertionError(f"the version of {name} was looked up")

    async with open_redis(url) as client:
        monkeypatch.setattr(importlib.metadata, "version", read)
        assert client.connection_pool.make_connection() is not None
