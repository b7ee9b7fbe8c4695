"""``python -m stratos_router``: settings from ``STRATOS_ROUTER_*``, then the common lifecycle."""

from __future__ import annotations

import sys
from random import Random

from stratos.common.clock import SystemClock
from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos_router.service import RouterApp
from stratos_router.settings import RouterSettings


def main() -> int:
    """Run the router until a signal."""
    settings = load_settings(RouterSettings)
    return serve(lambda: RouterApp(settings, SystemClock(), Random()), settings)


if __name__ == "__main__":
    sys.exit(main())
