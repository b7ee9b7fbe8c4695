"""Settings of the decode worker: ``STRATOS_DECODE_WORKER_*``."""

from __future__ import annotations

from stratos.worker.settings import WorkerSettings


class DecodeWorkerSettings(WorkerSettings):
    env_prefix = "STRATOS_DECODE_WORKER_"

    worker_id: str = "decode-0"
    """Stable name within the deployment; shown in receipts and logs."""
