"""Connections to Redis are made on the event loop, beside streams."""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
import struct

import pytest
import uvloop

from stratos.store.redis import open_redis


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+sentinel://127.0.0.1:1/main/0"])
async def test_a_new_connection_reads_nothing_of_the_installation(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> str:
        raise AssertionError(f"the version of {name} was looked up")

    async with open_redis(url) as client:
        monkeypatch.setattr(importlib.metadata, "version", read)
        assert client.connection_pool.make_connection() is not None


def test_connections_that_were_reset_while_idle_are_made_again() -> None:
    """On the loop of our processes, whose error for such a connection is not asyncio's."""
    assert uvloop.run(_answers_around_a_reset()) == [[True] * 4, [True] * 4]


async def _answers_around_a_reset() -> list[list[bool]]:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            if line.strip() == b"PING":
                await asyncio.sleep(0)  # so that each of those who ask at once needs a connection of its own
                writer.write(b"+PONG\r\n")
            elif line.strip() in (b"SETINFO", b"HELLO"):
                writer.write(b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_redis(f"redis://127.0.0.1:{port}/0?protocol=2") as client:
        answers = [await asyncio.gather(*(client.ping() for _ in range(4)))]
        for writer in writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for _ in range(20):  # the client's ends take note; where they did not, the error is another one
            await asyncio.sleep(0)
        return [*answers, await asyncio.gather(*(client.ping() for _ in range(4)))]
