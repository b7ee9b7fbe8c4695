"""Entry point: ``python -m stratos.worker.simulated``."""

from __future__ import annotations

import resource
import sys

from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos.worker.simulated.fleet import SimulatedFleet
from stratos.worker.simulated.settings import SimWorkerSettings


def main() -> int:
    """Serve until a signal; returns the exit code."""
    settings = load_settings(SimWorkerSettings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket to listen, and one per router and gateway
    return serve(lambda: SimulatedFleet(settings), settings)


if __name__ == "__main__":
    sys.exit(main())
