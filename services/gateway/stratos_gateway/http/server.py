"""uvicorn inside of our lifecycle: the socket listens before the server runs, signals stay with the lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from stratos.rpc.serving.embedded_http import EmbeddedServer
from stratos_gateway.http.listener import BACKLOG, Listener
from stratos_gateway.http.protocol import BoundedHttpProtocol, ConnectionsState
from stratos_gateway.http.shared_accept import SharedAccept

MIN_IDLE_S = 1.0
"""A connection that was used within this time is likely to be used again at once."""
_LAST_POLL_S = 0.02


class _UvicornServer(EmbeddedServer):
    def __init__(
        self, config: uvicorn.Config, tls: ssl.SSLContext | None, handshake_timeout_s: float, *, is_shared: bool
    ) -> None:
        super().__init__(config)
        self._is_shared = is_shared
        self._accepts: list[SharedAccept] = []
        self._options: dict[str, Any] = {}
        if tls is not None:
            self._options = {"ssl": tls, "ssl_handshake_timeout": handshake_timeout_s}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like uvicorn, with a bound of the TLS handshake, which it leaves at a minute."""
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()

        def connect() -> asyncio.Protocol:
            protocol: Any = config.http_protocol_class
            made: asyncio.Protocol = protocol(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        if self._is_shared:
            self._accepts = [SharedAccept(sock, connect, self._options) for sock in sockets or ()]
            self.servers = []
        else:
            self.servers = [
                await loop.create_server(connect, sock=sock, backlog=BACKLOG, **self._options) for sock in sockets or ()
            ]
        self.started = True

    def take_no_more(self) -> None:
        """Leave what comes to the others that listen."""
        for accept in self._accepts:
            accept.close()

    @property
    def may_be_asked(self) -> bool:
        """A request may come on a connection that was taken."""
        is_opening = any(accept.num_opening for accept in self._accepts)
        return is_opening or any(map(_is_idle, self.server_state.connections))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self.take_no_more()
        await super().shutdown(sockets)


def _is_idle(connection: Any) -> bool:
    """It is open, and has no answer under way."""
    cycle = connection.cycle
    return (cycle is None or cycle.response_complete) and not connection.transport.is_closing()


class HttpServer:
    """Serves a listener once ``run`` is called.

    Args:
        app: what answers.
        listener: where connections come from; closed with the server.
        state: bounds of connections, and what they share.
        trusted_proxies: whose X-Forwarded-For tells the client's address.
        tls: of the API; ``None`` is plain HTTP.
        before_stop: called before connections are ended, so that open streams can say why they end.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: Listener,
        state: ConnectionsState,
        *,
        trusted_proxies: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
        before_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = listener
        self._state = state
        self._before_stop = before_stop
        self.address = listener.address
        config = uvicorn.Config(
            app,
            http=partial(BoundedHttpProtocol, state),  # type: ignore[arg-type]  # uvicorn calls it, no more
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            timeout_keep_alive=state.limits.keep_alive_s,
            timeout_graceful_shutdown=1,
        )
        self._server = _UvicornServer(config, tls, state.limits.head_timeout_s, is_shared=listener.is_shared)

    async def run(self) -> None:
        """Root task: serve until it is cancelled; then connections are closed and the socket with them."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener.socket]))
        try:
            await asyncio.shield(serving)
        finally:
            self._before_stop()
            self._server.end()
            await serving

    def begin_leave(self) -> None:
        """End connections that are idle, and the others with their next answer.

        Where other processes listen on the same socket it takes no further connection, and they get what comes.  On a
        port of its own it goes on answering, since load balancers may not know yet that it leaves.
        """
        self._state.is_leaving = True
        if not self._server.started:
            return
        if self._listener.is_shared:
            self._server.take_no_more()
        self.end_idle(MIN_IDLE_S)

    async def until_last_requests(self) -> None:
        """Wait, where no further connection comes, until those there are have sent their last request; not for long."""
        if not self._listener.is_shared:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MIN_IDLE_S + _LAST_POLL_S):
                while self._server.may_be_asked:  # noqa: ASYNC110 - only at the end of a process
                    await asyncio.sleep(_LAST_POLL_S)

    def end_idle(self, min_idle_s: float = 0.0) -> None:
        """End connections whose last answer is this long ago, the others once it is, or with their next answer."""
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.end_when_idle(min_idle_s)

    def close(self) -> None:
        """Close the socket, also when ``run`` was never called."""
        self._listener.socket.close()
