"""TLS contexts: of the API, and of calls to endpoints outside of the platform."""

from __future__ import annotations

import functools
import ssl

import httpx

from stratos.common.tls.reloading import ReloadingContext, reason
from stratos.common.tls.settings import TlsConfig
from stratos.rpc.binding import StartError
from stratos_gateway.http.settings import HttpTlsConfig


def api_context(config: HttpTlsConfig) -> ReloadingContext:
    """It follows its files.

    Raises:
        StartError: they cannot be used.
    """
    try:
        return ReloadingContext("the API", config.certificate_path, config.key_path, _configure)
    except OSError as error:
        raise StartError(f"the certificate of the API cannot be used: {reason(error)}") from None


def admin_context(mesh: TlsConfig | None, api: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """For the admin API: with the certificate of mTLS, else with the API's; ``None`` where there is neither.

    A key says who calls, so clients need no certificate.

    Raises:
        StartError: it cannot be used.
    """
    if mesh is None:
        return api
    try:
        return ReloadingContext("the admin API", mesh.certificate_path, mesh.key_path, _configure).listening
    except OSError as error:
        raise StartError(f"the certificate of the admin API cannot be used: {reason(error)}") from None


@functools.cache
def outside_context() -> ssl.SSLContext:
    """Trusts public authorities; all clients share it, as to read them takes tens of milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


def _configure(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
