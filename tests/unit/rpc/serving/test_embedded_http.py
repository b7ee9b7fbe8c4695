"""The end of the HTTP server inside of a service process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from stratos.rpc.serving.embedded_http import EmbeddedServer


async def test_the_server_ends_after_the_requests_that_it_cancels() -> None:
    """What they tidy up with is closed next: a client of Redis that is used again connects again, and stays open."""
    begun, told = asyncio.Event(), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")
            for _ in range(10):
                await asyncio.sleep(0)
            told.append("tidy")

    server = EmbeddedServer(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await begun.wait()
        server.end()
        await serving
    assert told == ["cancelled", "tidy"]
    writer.close()
    await writer.wait_closed()
