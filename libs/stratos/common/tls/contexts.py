"""Contexts of Python's ``ssl`` from the newest files: TLS 1.3, certificates on both sides, no resumption.

Without resumption every connection shows a certificate that is valid now.  Names are not compared here: peers are
dialled by address, and both ends ask ``peer_identity`` after the handshake.
"""

from __future__ import annotations

import logging
import ssl
import threading
from typing import Any

from stratos.common.tls.files import TlsFiles, TlsMaterial
from stratos.common.tls.identity import Identity, parse_identity

_log = logging.getLogger(__name__)


class TlsContexts:
    """Both contexts of a process; made again when the files have changed. Thread-safe."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._lock = threading.Lock()
        self._made_from: TlsMaterial | None = None
        self._server: ssl.SSLContext
        self._client: ssl.SSLContext

    def server(self) -> ssl.SSLContext:
        """For connections that others make."""
        with self._lock:
            self._refresh()
            return self._server

    def client(self) -> ssl.SSLContext:
        """For connections that this process makes."""
        with self._lock:
            self._refresh()
            return self._client

    def _refresh(self) -> None:
        material = self.files.current()
        if material is self._made_from:
            return
        try:
            server = self._make(ssl.PROTOCOL_TLS_SERVER, material)
            server.num_tickets = 0
            client = self._make(ssl.PROTOCOL_TLS_CLIENT, material)
        except (ssl.SSLError, OSError) as error:
            if self._made_from is None:
                raise
            # ``ssl`` reads the files itself, maybe in the middle of the next change: the next call tries again
            _log.warning("the certificate changed while it was read: %s", error)
            return
        self._server, self._client, self._made_from = server, client, material

    def _make(self, protocol: int, material: TlsMaterial) -> ssl.SSLContext:
        config = self.files.config
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(config.certificate_path, config.key_path)
        context.load_verify_locations(cadata=material.ca.decode())
        return context


def peer_identity(connection: ssl.SSLSocket | ssl.SSLObject) -> Identity | None:
    """Whom the verified certificate of the peer names; ``None`` for no role of any platform."""
    certificate: dict[str, Any] = connection.getpeercert() or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return parse_identity(uris[0]) if len(uris) == 1 else None
