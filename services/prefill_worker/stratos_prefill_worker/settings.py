"""Settings of the prefill worker: ``STRATOS_PREFILL_WORKER_*``."""

from __future__ import annotations

from stratos.worker.settings import WorkerSettings


class PrefillWorkerSettings(WorkerSettings):
    env_prefix = "STRATOS_PREFILL_WORKER_"

    worker_id: str = "prefill-0"
    """Stable name within the deployment; shown in receipts and logs."""
