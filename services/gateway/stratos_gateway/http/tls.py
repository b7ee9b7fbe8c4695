"""The TLS context of the API."""

from __future__ import annotations

import ssl

from stratos.common.tls.reloading import ReloadingContext, reason
from stratos.rpc.binding import StartError
from stratos_gateway.http.config import HttpTlsConfig


def api_context(config: HttpTlsConfig) -> ReloadingContext:
    """It follows its files.

    Raises:
        StartError: they cannot be used.
    """
    try:
        return ReloadingContext("the API", config.certificate_path, config.key_path, _configure)
    except OSError as error:
        raise StartError(f"the certificate of the API cannot be used: {reason(error)}") from None


def _configure(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
