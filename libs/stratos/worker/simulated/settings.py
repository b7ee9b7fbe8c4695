"""Settings of a process of simulated workers: ``STRATOS_SIM_WORKER_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from stratos.core.placement import WorkerRole
from stratos.sim.runner import StepCosts
from stratos.worker.settings import WorkerSettings


class SimWorkerSettings(WorkerSettings):
    """How many workers, and what all of them are."""

    env_prefix = "STRATOS_SIM_WORKER_"

    worker_id: str = "sim"
    """Begins the name of each worker: sim-0, sim-1, ..."""
    engine: Literal["torch", "fake"] = "fake"
    """Has no meaning here: simulated workers compute by hand."""
    self_check_interval_s: float = Field(0.0, ge=0)
    """Off: what has no engine has nothing to check."""
    count: int = Field(1, ge=1, le=10_000)
    """Workers in this process."""
    role: WorkerRole = WorkerRole.DECODE
    """Role of all of them."""
    discovery_folder: Path
    """Folder in which routers look for workers; a file of this process is there while it serves."""

    costs: StepCosts = StepCosts()
