"""TLS of the metrics API: its certificate, read again when it changes, and the CA of the API server's own."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stratos.common.tls.reloading import ReloadingContext
from stratos_autoscaler.metrics_api.front_proxy import FrontProxy

CERTIFICATE_KEY = "stratos.peer_certificate"
"""In an ASGI scope: the verified certificate of the connection's other end, or nothing."""


class ServingContext:
    """The context to listen with: a certificate that follows its files, and clients checked by the front proxy's CA.

    Belongs to the event loop.

    Args:
        certificate_path: PEM.
        key_path: PEM.

    Raises:
        OSError: they cannot be used.
    """

    def __init__(self, certificate_path: Path, key_path: Path) -> None:
        self._proxy: FrontProxy | None = None
        self._context = ReloadingContext("the metrics API", certificate_path, key_path, self._configure)
        self.listening = self._context.listening

    def trust(self, proxy: FrontProxy) -> None:
        """Check client certificates by these CAs from now on.

        Raises:
            OSError: they cannot be read, or the certificate cannot; the CAs of before stay.
        """
        before, self._proxy = self._proxy, proxy
        if proxy == before:
            return
        try:
            self._context.renew()
        except OSError:  # ssl.SSLError is one
            self._proxy = before
            raise

    def _configure(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL  # who shows none is told so, in the API's own words
        context.num_tickets = 0  # a resumed connection would show no certificate
        if self._proxy is not None:
            context.load_verify_locations(cadata=self._proxy.ca)


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
