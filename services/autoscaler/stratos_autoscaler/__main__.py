"""``python -m stratos_autoscaler``: settings from ``STRATOS_AUTOSCALER_*``, then the common lifecycle."""

from __future__ import annotations

import sys

from stratos_autoscaler.service import AutoscalerApp
from stratos_autoscaler.settings import AutoscalerSettings
from stratos.common.clock import SystemClock
from stratos.rpc.process import serve
from stratos.rpc.settings import load_settings


def main() -> int:
    """Run the autoscaler until it is told to stop."""
    settings = load_settings(AutoscalerSettings)
    return serve(lambda: AutoscalerApp(settings, SystemClock()), settings)


if __name__ == "__main__":
    sys.exit(main())
