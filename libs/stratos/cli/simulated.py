"""``stratos sim-worker``: simulated workers beside a running platform, or for routers that look into a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.common.errors import BadRequest
from stratos.common.tls.identity import PeerRole
from stratos.pki.local import tls_config, tls_environment

PREFIX = "STRATOS_SIM_WORKER_"
MAX_COUNT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Simulated workers to run."""

    count: int
    role: str = "decode"
    name: str = "sim"
    """Begins the name of each worker; processes beside each other need different ones."""
    step_ms: float | None = None
    """Duration of a step without prompt tokens; ``None`` takes the cost model's default."""

    def __post_init__(self) -> None:
        """Check; raises ``BadRequest`` with the flag's name."""
        if not 1 <= self.count <= MAX_COUNT:
            raise BadRequest(f"--count must be between 1 and {MAX_COUNT}, not {self.count}", param="--count")
        if self.role not in ("prefill", "decode"):
            raise BadRequest(f"--role must be prefill or decode, not {self.role!r}", param="--role")
        if not self.name or set(self.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-"):
            raise BadRequest("--name takes lower-case letters, digits and hyphens", param="--name")
        if self.step_ms is not None and self.step_ms < 0:
            raise BadRequest("--step-ms must not be negative", param="--step-ms")


def settings_beside(facts: PlatformFacts, data_dir: Path, role: str) -> dict[str, str]:
    """Settings of workers that belong to a running platform: its model, discovery, object store and memory."""
    run = DataDir(data_dir).run_paths(facts.run_id)
    settings = {
        "DISCOVERY_FOLDER": str(run.workers_folder),
        "FAKE__MODEL_PATH": facts.model_path,
        "TRANSPORT__NAMES": json.dumps(["shm", "tls"] if facts.tls_folder else ["shm"]),
        "TRANSPORT__SHM_DIRECTORY": str(run.shm_path),
        "ADAPTER_CACHE__DIRECTORY": str(run.work_path / "adapters-sim"),
        "OBJECT_STORE__URL": facts.object_store_url,
    }
    if facts.tls_folder:
        settings |= tls_environment(tls_config(Path(facts.tls_folder), PeerRole(f"{role}-worker")))
    if facts.s3_endpoint_url:
        settings["OBJECT_STORE__S3_ENDPOINT_URL"] = facts.s3_endpoint_url
    return settings


def command(options: SimOptions, settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the process."""
    asked = {"COUNT": str(options.count), "ROLE": options.role, "WORKER_ID": options.name}
    if options.step_ms is not None:
        asked["COSTS__STEP_S"] = str(options.step_ms / 1000)
    env = {f"{PREFIX}{key}": value for key, value in {**settings, **asked}.items()}
    return [sys.executable, "-m", "stratos.worker.simulated"], {**os.environ, **env}
