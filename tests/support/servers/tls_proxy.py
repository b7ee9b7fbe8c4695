"""TLS in front of a server that has none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos.common.background import BackgroundTasks


@asynccontextmanager
async def tls_proxy(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Yields a port of 127.0.0.1 where the server at ``port`` answers over TLS."""
    pipes = BackgroundTasks()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        pipes.spawn(pump(reader, up_writer), name="up")
        pipes.spawn(pump(up_reader, writer), name="down")

    server = await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        pipes.cancel()
        await pipes.close()
