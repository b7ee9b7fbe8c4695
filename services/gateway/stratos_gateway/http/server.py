"""uvicorn inside of our lifecycle: the socket is bound at open, signals stay with the lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from stratos.rpc.binding import explain_bind_failure, join_address, split_address
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.protocol import BoundedHttpProtocol

BACKLOG = 2048
KEEP_ALIVE_S = 30


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the lifecycle."""
        yield


class HttpServer:
    """Bound by construction, served by ``run``.

    Args:
        app: what answers.
        listen: host:port.
        setting: name of the setting that holds it, for messages.
        limits: of each connection.

    Raises:
        StartError: the address cannot be bound.
    """

    def __init__(self, app: ASGIApp, listen: str, setting: str, limits: HttpLimits) -> None:
        self._socket = _bind(listen, setting)
        self.address = join_address(split_address(listen)[0], self._socket.getsockname()[1])
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
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            await asyncio.shield(serving)
        finally:
            self._server.should_exit = True
            await serving

    def close(self) -> None:
        """Close the socket, also when ``run`` was never called."""
        self._socket.close()


def _bind(listen: str, setting: str) -> socket.socket:
    host, port = split_address(listen)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise explain_bind_failure(listen, setting, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise explain_bind_failure(listen, setting, error) from None
    listener.setblocking(False)
    return listener
