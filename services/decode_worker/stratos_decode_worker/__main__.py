"""Entry point: ``python -m stratos_decode_worker``."""

from __future__ import annotations

import sys

from stratos.core.placement import WorkerRole
from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos.worker.service import worker_service
from stratos_decode_worker.settings import DecodeWorkerSettings


def main() -> int:
    """Serve until a signal; returns the exit code."""
    settings = load_settings(DecodeWorkerSettings)
    return serve(lambda: worker_service(WorkerRole.DECODE, settings), settings)


if __name__ == "__main__":
    sys.exit(main())
