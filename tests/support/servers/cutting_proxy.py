"""TCP in front of gateways that ends connections in the middle of their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from stratos.common.background import BackgroundTasks


@dataclass(frozen=True, slots=True)
class Cut:
    """End of a connection right behind ``at``, which has come so often by then."""

    at: bytes
    times: int = 1
    is_shown: bool = True
    """Whether the client gets what came until then."""


@asynccontextmanager
async def cutting_proxy(addresses: Sequence[str], cuts: Sequence[Cut]) -> AsyncIterator[str]:
    """Yields a URL whose connections go to one address after the other; the first ones are cut, each in its way."""
    pipes, waiting = BackgroundTasks(), list(cuts)
    turns = [address.rsplit(":", 1) for address in addresses]

    async def up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)

    async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut | None) -> None:
        seen = b""
        while data := await reader.read(65536):
            if cut is None:
                writer.write(data)
                continue
            begun, seen = len(seen), seen + data
            pieces = seen.split(cut.at, cut.times)
            is_over = len(pieces) > cut.times
            if cut.is_shown:
                writer.write(seen[begun : len(seen) - len(pieces[-1]) if is_over else None])
            if is_over:
                return

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = turns[0]
        turns.append(turns.pop(0))
        cut = waiting.pop(0) if waiting else None
        with contextlib.closing(writer):
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
            with contextlib.closing(up_writer), contextlib.suppress(OSError):
                pipes.spawn(up(reader, up_writer), name="up")
                await down(up_reader, writer, cut)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipes.spawn(connect(reader, writer), name="connect")

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        pipes.cancel()
        await pipes.close()
