"""The serving side of mTLS: a port that follows the certificate, and whom a call comes from."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from stratos.common.tls.files import TlsFiles, TlsMaterial
from stratos.common.tls.identity import Identity, InvalidCertificate, parse_identity
from stratos.rpc.binding import StartError
from stratos.rpc.instruments import gauge
from stratos.rpc.settings import ServiceSettings, env_name_of

CERTIFICATE_EXPIRY = gauge(
    "stratos_tls_certificate_expiry_timestamp_seconds", "End of validity of the certificate in use, in Unix time."
)


def open_tls(settings: ServiceSettings) -> TlsFiles | None:
    """The certificate of a process; ``None`` without mTLS.

    Raises:
        StartError: it cannot be used.
    """
    if settings.tls is None:
        return None
    try:
        return TlsFiles(settings.tls)
    except InvalidCertificate as error:
        raise StartError(f"{error}; correct the files or {env_name_of(type(settings), ('tls',))}__*") from None


def add_port(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> int:
    """Let a server listen; returns the port, 0 when the address is taken.

    With mTLS the certificate is looked at on every handshake, and a peer without one of our CAs is refused there.
    """
    if tls is None:
        return int(server.add_insecure_port(address))
    served = tls.current()

    def fetch() -> Any:
        nonlocal served
        newest = tls.current()
        if newest is served:
            return None  # gRPC goes on with the configuration that it has
        served = newest
        return _configuration(newest)

    credentials = grpc.dynamic_ssl_server_credentials(_configuration(served), fetch, require_client_authentication=True)
    return int(server.add_secure_port(address, credentials))


def caller_identity(context: Any) -> Identity | None:
    """Whom the verified certificate of a call's peer names; ``None`` for no role of any platform."""
    uris = context.auth_context().get("peer_uri", ())
    return parse_identity(uris[0].decode(errors="replace")) if len(uris) == 1 else None


def register_expiry(registry: CollectorRegistry, tls: TlsFiles) -> None:
    """Show until when the certificate in use is valid."""
    CERTIFICATE_EXPIRY.open(registry).set_function(lambda: tls.current().not_after.timestamp())


def _configuration(material: TlsMaterial) -> Any:
    pair = (material.key, material.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=material.ca)
