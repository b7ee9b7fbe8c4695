"""``python -m stratos_autoscaler``: settings from ``STRATOS_AUTOSCALER_*``, then the common lifecycle."""

from __future__ import annotations

import sys

from stratos.common.clock import SystemClock
from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos_autoscaler.service import AutoscalerApp
from stratos_autoscaler.settings import AutoscalerSettings


def main() -> int:
    """Run the autoscaler until a signal."""
    settings = load_settings(AutoscalerSettings)
    return serve(lambda: AutoscalerApp(settings, SystemClock()), settings)


if __name__ == "__main__":
    sys.exit(main())
