"""``python -m stratos_gateway``: settings from ``STRATOS_GATEWAY_*``."""

from __future__ import annotations

import resource
import sys

from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos_gateway.backends import open_backends
from stratos_gateway.service import GatewayService
from stratos_gateway.settings import GatewaySettings


def main() -> int:
    """Run the gateway; returns the exit code."""
    settings = load_settings(GatewaySettings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # HTTP__MAX_CONNECTIONS is the bound, not 1024 of a shell
    return serve(lambda: GatewayService(settings, open_backends), settings)


if __name__ == "__main__":
    sys.exit(main())
