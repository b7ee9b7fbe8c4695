"""uvicorn inside of our lifecycle: the socket listens before the server runs, signals stay with the lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.listener import Listener
from stratos_gateway.http.protocol import BoundedHttpProtocol

KEEP_ALIVE_S = 30


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the lifecycle."""
        yield


class HttpServer:
    """Serves a listener once ``run`` is called.

    Args:
        app: what answers.
        listener: where connections come from; closed with the server.
        limits: of each connection.
    """

    def __init__(self, app: ASGIApp, listener: Listener, limits: HttpLimits) -> None:
        self._listener = listener
        self.address = listener.address
        config = uvicorn.Config(
            app,
            http=partial(BoundedHttpProtocol, limits),  # type: ignore[arg-type]  # uvicorn calls it, no more
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)

    async def run(self) -> None:
        """Root task: serve until it is cancelled; then connections are closed and the socket with them."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener.socket]))
        try:
            await asyncio.shield(serving)
        finally:
            self._server.should_exit = True
            await serving

    def leave_shared_port(self) -> None:
        """Take no further connection where other processes listen on the same socket, and end idle ones.

        On a port of its own the server goes on answering: a client that connects learns that it drains.
        """
        if not self._listener.is_shared or not self._server.started:
            return
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.end_when_idle()

    def close(self) -> None:
        """Close the socket, also when ``run`` was never called."""
        self._listener.socket.close()
