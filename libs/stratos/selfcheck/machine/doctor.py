"""``stratos doctor``: gathers the facts, runs every check, in the order in which things are repaired."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import stratos
from stratos.common.errors import StratosError
from stratos.common.tls.identity import InvalidCertificate
from stratos.engine.native.build import find_compiler
from stratos.engine.native.isa import SOURCE_FOLDER
from stratos.engine.sizing.case import Room
from stratos.engine.sizing.fit import plan_of
from stratos.engine.sizing.machine import Machine, read_machine
from stratos.engine.sizing.need import read_need
from stratos.engine.sizing.plan import EnginePlan
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.pki.audit import check_files
from stratos.pki.local import role_config
from stratos.pki.stores import CERTIFICATE
from stratos.selfcheck.findings import Finding
from stratos.selfcheck.machine import checks, environment
from stratos.selfcheck.machine.sizing import WorkerAsk, plan_workers, worker_settings
from stratos.store.settings import ObjectStoreConfig

MIN_LEFT = datetime.timedelta(days=7)
UNKNOWN_GPU = Room(is_gpu=True, total_bytes=0, free_bytes=0)
"""Memory of a GPU, which is asked when a worker starts: torch takes seconds to be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorAsk:
    """Options with which a platform is going to be started."""

    workers: WorkerAsk
    threads: int = 0
    device: str = "cpu"
    num_sources: int = 1
    """Workers that send KV to one other."""
    host: str = "127.0.0.1"
    port: int = 8000
    redis_url: str = ""
    object_store_url: str = ""
    s3_endpoint_url: str = ""
    certificates: Path | None = None
    domain: str = "stratos"


def examine(ask: DoctorAsk, env: Mapping[str, str]) -> list[Finding]:
    """Every finding; asks Redis and the object store, and changes nothing."""
    machine, settings = read_machine(), worker_settings(ask.workers, env)
    fleet = checks.PlannedFleet(num_workers=ask.workers.num_workers, threads=ask.threads, device=ask.device)
    plan = _plan(ask, machine, env)
    redis, store_problem = asyncio.run(_ask_stores(ask))
    shm, staging = TransportConfig().shm_directory, _staging(ask.workers, plan)
    has_kernels = any(SOURCE_FOLDER.glob("kernels-*.so"))
    return [
        checks.check_processor(machine, settings.runner, SOURCE_FOLDER),
        checks.check_compiler(find_compiler(), has_kernels, ask.device),
        checks.check_drivers(environment.read_gpus(), fleet),
        *checks.check_settings(machine, fleet, settings.runner, settings.scheduler),
        checks.check_memory(machine, plan, fleet),
        *_length(ask.workers, plan),
        checks.check_shm(environment.free_shm_bytes(shm), shm, staging, ask.num_sources),
        checks.check_port(ask.host, ask.port, environment.port_problem(ask.host, ask.port)),
        checks.check_redis(redis),
        *([checks.check_object_store(ask.object_store_url, store_problem)] if ask.object_store_url else []),
        checks.check_clock(time.time(), environment.newest_change_s(Path(stratos.__file__).parent), redis),
        *checks.check_certificates(ask.certificates, _certificates(ask)),
    ]


def _plan(ask: DoctorAsk, machine: Machine, env: Mapping[str, str]) -> EnginePlan | str:
    try:
        if ask.device == "cuda":
            settings = worker_settings(ask.workers, env)
            return plan_of(settings.runner, settings.scheduler, UNKNOWN_GPU)
        return plan_workers(ask.workers, machine, env)[0]
    except StratosError as error:
        return error.message


def _staging(ask: WorkerAsk, plan: EnginePlan | str) -> StagingConfig:
    """Slots for the model, or the smallest where it does not fit or cannot be read: the memory check says so."""
    if isinstance(plan, str):
        return TransportConfig().staging.fitted(0)
    need = read_need(ask.model_path)
    return TransportConfig().staging.fitted(need.token_bytes(plan.dtype), need.state_layer_bytes)


def _length(ask: WorkerAsk, plan: EnginePlan | str) -> list[Finding]:
    try:
        model_len = read_need(ask.model_path).max_model_len
    except StratosError:
        return []  # the memory check has its message
    return [checks.check_length(model_len, worker_settings(ask, {}).runner, plan)]


async def _ask_stores(ask: DoctorAsk) -> tuple[environment.RedisFacts | None, str]:
    redis = await environment.read_redis(ask.redis_url) if ask.redis_url else None
    if not ask.object_store_url:
        return redis, ""
    config = ObjectStoreConfig(url=ask.object_store_url, s3_endpoint_url=ask.s3_endpoint_url)
    return redis, await environment.object_store_problem(config)


def _certificates(ask: DoctorAsk) -> list[tuple[str, str]]:
    if ask.certificates is None:
        return []
    found = []
    for path in sorted((*ask.certificates.glob(CERTIFICATE), *ask.certificates.glob(f"*/{CERTIFICATE}"))):
        try:
            found.append((check_files(role_config(path.parent, ask.domain), None, MIN_LEFT), ""))
        except InvalidCertificate as error:
            found.append(("", str(error)))
    return found
