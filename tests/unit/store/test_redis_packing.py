"""Commands are the bytes that the client itself would send."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Connection

from stratos.store.connections.packing import pack_quickly
from stratos.store.redis import open_redis


@pytest.mark.parametrize(
    "args",
    [
        ("GET", "key"),
        ("EVALSHA", "f" * 40, 2, "a", "b", 0.1, 1e-9, -7, "", "käse", b"\x00\r\n$1", "\ud800"),
        ("SET", "k", "x" * 10_000),
        ("SET", "k", "x" * 100_000, 5),
        ("CONFIG GET", "maxmemory"),
        (b"GET", "key"),
        ("SET", "k", memoryview(b"part")),
    ],
    ids=["short", "all kinds", "long", "longer", "two words", "bytes", "a view"],
)
async def test_a_command_is_what_the_client_sends(args: tuple[Any, ...]) -> None:
    usual = Connection(decode_responses=True, encoding_errors="replace")
    async with open_redis("redis://127.0.0.1:1/0") as client:
        ours: Connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        assert b"".join(map(bytes, ours.pack_command(*args))) == b"".join(map(bytes, usual.pack_command(*args)))


@pytest.mark.parametrize(
    "url", ["redis://h:1/0", "rediss://h:1/0", "unix:///tmp/r.sock", "redis+sentinel://h:1/main/0"]
)
async def test_short_commands_are_packed_quickly_at_any_address(url: str) -> None:
    async with open_redis(url) as client:
        connection: Connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        assert connection.pack_command("GET", "key") == [pack_quickly(("GET", "key"))]
        assert type(connection).__name__.startswith("Quick")


@pytest.mark.parametrize("args", [("GET", None), ("GET", True), ("GET", ["list"])])
async def test_what_is_no_value_is_refused_as_before(args: tuple[Any, ...]) -> None:
    assert pack_quickly(args) is None
