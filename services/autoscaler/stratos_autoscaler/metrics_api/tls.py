"""TLS of the metrics API: its certificate, read again when it changes, and the CA of the API server's own."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stratos_autoscaler.metrics_api.front_proxy import FrontProxy

_log = logging.getLogger(__name__)
CERTIFICATE_KEY = "stratos.peer_certificate"
"""In an ASGI scope: the verified certificate of the connection's other end, or nothing."""


class ServingContexts:
    """The context to listen with; each handshake gets the newest one. Belongs to the event loop.

    Args:
        certificate_path: PEM.
        key_path: PEM.
    """

    def __init__(self, certificate_path: Path, key_path: Path) -> None:
        self._paths = certificate_path, key_path
        self._signature: object = None
        self._proxy: FrontProxy | None = None
        self._problem = ""
        self._newest = self._make(None)
        self.listening = self._make(None)
        self.listening.sni_callback = self._choose

    def trust(self, proxy: FrontProxy) -> None:
        """Check client certificates by these CAs from now on.

        Raises:
            ssl.SSLError: they cannot be read.
        """
        if proxy != self._proxy:
            self._newest = self._make(proxy)
            self._proxy = proxy

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current()

    def _current(self) -> ssl.SSLContext:
        problem = ""
        try:
            if self._look() != self._signature:
                self._newest = self._make(self._proxy)
        except OSError as error:  # ssl.SSLError is one
            problem = f"{error}"
        if problem and problem != self._problem:
            _log.error("the certificate of the metrics API cannot be used: %s; the one of before stays", problem)
        self._problem = problem
        return self._newest

    def _look(self) -> object:
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (path.stat() for path in self._paths))

    def _make(self, proxy: FrontProxy | None) -> ssl.SSLContext:
        signature = self._look()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["http/1.1"])
        context.verify_mode = ssl.CERT_OPTIONAL  # who shows none is told so, in the API's own words
        context.num_tickets = 0  # a resumed connection would show no certificate
        context.load_cert_chain(*self._paths)
        if proxy is not None:
            context.load_verify_locations(cadata=proxy.ca)
        self._signature = signature
        return context


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's connection, whose application finds the certificate of the other end in its scope."""

    def connection_made(self, transport: Any) -> None:
        """The handshake is over."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert() if connection is not None else None
        inner = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[CERTIFICATE_KEY] = certificate
            await inner(scope, receive, send)

        self.app = app
