"""Which processes make a platform, and with which settings: pure, from options and addresses to process specs.

    redis ──▶ lora-registry ─┐
    prefill-N, decode-N ─────┼─▶ gateway-N        an arrow: must serve before the other is started
    router-N ────────────────┘
    router-N, supervisor ──▶ autoscaler

Workers, registry and routers start together; routers find workers through ``workers/`` as they come up.
Replicas of a service differ in their names alone; the gateways take connections from one socket, see ``ports``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stratos.cli.data.folder import DataDir, RunDir
from stratos.cli.data.speculative_config import parse_speculative_config
from stratos.cli.local.options import UpOptions
from stratos.cli.local.ports import GatewayListeners
from stratos.common.tls.identity import PeerRole
from stratos.core.files.handed_digest import digest_in
from stratos.pki.local import tls_config, tls_environment

WAKE_TIMEOUT_S = 60
"""Longest wait for a model that sleeps or has no worker; gateways wait no longer, either."""
Role = Literal["", "prefill", "decode"]
Readiness = Literal["address_file", "redis", "prometheus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start one process and how to see that it serves."""

    name: str
    service: str = ""
    """Which service it is a replica of: "gateway", ..., "decode_worker"; "redis", "prometheus"."""
    argv: tuple[str, ...]
    module: str = ""
    """Package of a service, which a fork server runs without the command line."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the supervisor's environment."""
    role: Role = ""
    model_digest: str = ""
    """Digest of the model that a worker was started with."""
    is_spare: bool = False
    """A worker that has loaded its model, and waits until one of its role and model is missing."""
    is_spot: bool = False
    """A worker that takes the lowest class alone, and that no pool counts on."""
    listen_env: str = ""
    """Variable that holds the address the process announces; a restart listens there again."""
    public_address: str = ""
    """Address that clients dial, where that is not the gRPC server: the gateways' HTTP address."""
    listeners: tuple[int, ...] = ()
    """File descriptors of listening sockets that the process inherits."""
    readiness: Readiness = "address_file"
    start_timeout_s: float = 120.0
    """A process that does not serve after this long is given up; torch on a busy laptop needs a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Facts that the platform has when it starts a process, addresses above all; empty until then."""

    redis_url: str = field(default="", repr=False)
    object_store_url: str = ""
    routers: tuple[str, ...] = ()
    supervisor: str = ""
    pepper: str = field(default="", repr=False)
    platform_key: str = field(default="", repr=False)
    digests: Mapping[Path, str] = field(default_factory=dict)
    """Digest of each model's folder, computed once in a run; processes hash a model themselves where it is missing or
    out of date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """Files of the run whose paths processes get."""

    workers_folder: Path
    shm_path: Path
    """Private folder in memory for staging rings."""
    work_path: Path
    """Folder for files that need not outlive the run."""
    kv_path: Path
    """Folder for KV on disk, which the next run finds again."""


def run_paths(run: RunDir, data: DataDir) -> RunPaths:
    """Paths of a run."""
    return RunPaths(
        workers_folder=run.workers_folder, shm_path=run.shm_path, work_path=run.work_path, kv_path=data.kv_path
    )


def service_spec(
    name: str,
    module: str,
    settings: Mapping[str, str],
    *,
    address_file: Path,
    options: UpOptions,
    role: Role = "",
    tls_path: Path | None = None,
) -> ProcessSpec:
    """A process of ours: ``python -m stratos_<module>`` with settings in the environment."""
    prefix = f"STRATOS_{module.upper()}_"
    common = {
        "LISTEN": "127.0.0.1:0",
        "METRICS_LISTEN": "127.0.0.1:0",
        "LOG_LEVEL": options.log_level.upper(),
        "OTLP_ENDPOINT": options.otlp_endpoint,
        "DRAIN_TIMEOUT_S": str(options.drain_timeout_s),
        "ADDRESS_FILE": str(address_file),
    }
    if tls_path is not None:
        common |= tls_environment(tls_config(tls_path, PeerRole(module.replace("_", "-"))))
    env = {f"{prefix}{key}": value for key, value in {**common, **settings}.items()}
    if role:  # every library that computes, from its import on: a team larger than its cores stops for milliseconds
        env["OMP_NUM_THREADS"] = str(options.threads_per_worker)
    package = f"stratos_{module}"
    return ProcessSpec(
        name=name,
        service=module,
        argv=(sys.executable, "-m", package),
        module=package,
        env=env,
        role=role,
        model_digest=digest_in(settings.get("RUNNER__MODEL_DIGEST", "")),
        listen_env=f"{prefix}LISTEN",
    )


def spare_of(spec: ProcessSpec, *, is_spare: bool = True) -> ProcessSpec:
    """The same worker as a spare, or as none."""
    name = f"STRATOS_{spec.service.upper()}_IS_SPARE"
    return replace(spec, is_spare=is_spare, env={**spec.env, name: str(is_spare).lower()})


def spot_of(spec: ProcessSpec) -> ProcessSpec:
    """The same worker as one that may vanish at any moment."""
    return replace(spec, is_spot=True, env={**spec.env, f"STRATOS_{spec.service.upper()}_IS_SPOT": "true"})


def first_workers(
    options: UpOptions, make: Callable[[str, str, UpOptions], ProcessSpec]
) -> list[list[list[ProcessSpec]]]:
    """Workers that start with the platform, model by model; those of further models have it in their name.

    Models that share a device are one entry, in the order in which they are started: the last one keeps it.

    Args:
        options: of the platform.
        make: the worker of a role, a name and a model.
    """
    kinds = [("", options), *((f"{more.model_name}-", more) for more in options.more_models)]
    specs = {
        of.model_name: [
            make(role, f"{role}-{label}{i}", of)
            for role, count in (("prefill", of.prefill), ("decode", of.decode))
            for i in range(count)
        ]
        for label, of in kinds
    }
    decode = range(options.decode, options.decode + options.spares)
    specs[options.model_name] += [spare_of(make("decode", f"decode-{i}", options)) for i in decode]
    specs[options.model_name] += [spot_of(make("decode", f"decode-spot-{i}", options)) for i in range(options.spot)]
    by_turns = [specs.pop(name) for name in reversed(options.sharers)]
    return [*([one] for one in specs.values()), *([by_turns] if by_turns else [])]


def registry_settings(options: UpOptions, ends: Endpoints, paths: RunPaths) -> dict[str, str]:
    """Settings of the lora-registry."""
    return {
        "REDIS_URL": ends.redis_url,
        "REGISTRAR__RESERVED_NAMES": json.dumps(
            [options.model_name, *(more.model_name for more in options.more_models)]
        ),
        "REGISTRAR__WORK_FOLDER": str(paths.work_path),
        **_object_store(options, ends),
    }


def router_settings(options: UpOptions, paths: RunPaths) -> dict[str, str]:
    """Settings of the router."""
    settings = {"DISCOVERY": f"folder://{paths.workers_folder}"}
    if options.share_device or not options.decode:
        settings["QUEUE__WAKE_TIMEOUT_S"] = str(WAKE_TIMEOUT_S)
    return settings


def worker_settings(name: str, options: UpOptions, ends: Endpoints, paths: RunPaths) -> dict[str, str]:
    """Settings of a prefill or decode worker."""
    return {
        "WORKER_ID": name,
        "POOL": options.pool_of(name),
        "ENGINE": options.engine,
        "DEVICE": options.device,
        "FAKE__MODEL_PATH": str(options.model_path),
        "FAKE__MODEL_DIGEST": ends.digests.get(options.model_path, ""),
        "RUNNER__MODEL_PATH": str(options.model_path),
        "RUNNER__MODEL_DIGEST": ends.digests.get(options.model_path, ""),
        "RUNNER__DTYPE": options.dtype,
        "RUNNER__QUANTIZATION": options.quantization,
        "RUNNER__KV_DTYPE": options.kv_cache_dtype,
        "RUNNER__NUM_THREADS": str(options.threads_per_worker),
        **(parse_speculative_config(options.speculative_config) if name.startswith("decode") else {}),
        "TRANSPORT__NAMES": json.dumps(options.transports),
        "TRANSPORT__SHM_DIRECTORY": str(paths.shm_path),
        "ADAPTER_CACHE__DIRECTORY": str(paths.work_path / f"adapters-{name}"),
        **_model_source(options),
        "DISK_TIER__DIRECTORY": str(paths.kv_path / name),
        "DISK_TIER__MAX_BYTES": str(options.kv_disk_gib << 30),
        **_object_store(options, ends),
    }


def _model_source(options: UpOptions) -> dict[str, str]:
    """Where a worker has a model of the registry from."""
    if not options.source:
        return {}
    return {"MODEL__SOURCE": options.source, "MODEL__CACHE_DIRECTORY": str(DataDir(options.data_dir).models_path)}


def worker_sizes(options: UpOptions) -> dict[str, str]:
    """Share of the machine that a worker takes, unless its own environment sets it."""
    sizes = {
        "RUNNER__KV_POOL_BYTES": str(options.kv_pool_bytes),
        "RUNNER__HOST_POOL_BYTES": str(options.kv_host_gib << 30),
        "RUNNER__MAX_MODEL_LEN": str(options.max_model_len),
    }
    if options.device == "cuda":
        sizes["RUNNER__GPU_MEMORY_UTILIZATION"] = f"{options.gpu_share:.3f}"
        sizes["RUNNER__HOST_MEMORY_SHARE"] = f"{options.host_share:.3f}"
    return sizes


def gateway_settings(
    options: UpOptions, ends: Endpoints, listeners: GatewayListeners, copy_path: Path
) -> dict[str, str]:
    """Settings of a gateway."""
    return {
        "HTTP_LISTEN": listeners.public.address,
        "HTTP_LISTENER_FD": str(listeners.public.fd),
        "ADMIN__LISTENER_FD": str(listeners.admin.fd),
        "ADMIN__PLAINTEXT": "true",  # it is on loopback
        "ROUTER_ADDRESSES": json.dumps(ends.routers),
        "REDIS_URL": ends.redis_url,
        "KEY_PEPPER": ends.pepper,
        "PLATFORM_KEY": ends.platform_key,
        "SNAPSHOT__COPY_PATH": str(copy_path),
        "LEDGER__SPOOL_PATH": str(copy_path.with_suffix(".ledger")),
        "MODEL_RECORDS__FOLDER": str(copy_path.with_suffix(".models")),
        "MODEL__PATH": str(options.model_path),
        "MODEL__DIGEST": ends.digests.get(options.model_path, ""),
        "MODEL__NAME": options.model_name,
        "MODEL__MAX_MODEL_LEN": str(options.max_model_len),
        "MODEL__QUANTIZATION": options.quantization,
        **({"HTTP__LENIENT": "true"} if options.lenient else {}),
        **_more_models(options, ends),
        **_object_store(options, ends),
    }


def _more_models(options: UpOptions, ends: Endpoints) -> dict[str, str]:
    models = [
        {
            "path": str(more.model_path),
            "digest": ends.digests.get(more.model_path, ""),
            "name": more.model_name,
            "max_model_len": more.max_model_len,
            "quantization": more.quantization,
        }
        for more in options.more_models
    ]
    return {"MORE_MODELS": json.dumps(models)} if models else {}


def autoscaler_settings(options: UpOptions, ends: Endpoints) -> dict[str, str]:
    """Settings of the autoscaler, which asks this supervisor for workers of the first model."""
    decode: dict[str, str | int] = {
        "role": "decode",
        "served_name": options.model_name,
        "min_workers": options.decode,
        "max_workers": options.decode_limit,
    }
    if digest := digest_in(ends.digests.get(options.model_path, "")):
        decode["model_digest"] = digest  # workers of other models are none of this pool
    settings = {
        "SUPERVISOR_ADDRESS": ends.supervisor,
        "ROUTER_ADDRESSES": json.dumps(ends.routers),
        "POOLS": json.dumps([decode, *_resting_pools(options, ends)]),
        "PLANNER__UP_QUEUE_DEPTH": "0",  # on one machine the first request that waits is worth a worker
        "PLANNER__DOWN_QUEUE_DEPTH": "1",
    }
    if options.share_device:
        paths = {model.model_name: model.model_path for model in (options, *options.more_models)}
        digests = [digest_in(ends.digests.get(paths[name], "")) for name in options.sharers]
        settings |= {"SHARED_DEVICES": json.dumps([digests]), "POLL_INTERVAL_S": "0.2"}
    return settings


def _resting_pools(options: UpOptions, ends: Endpoints) -> list[dict[str, str | int]]:
    """Decode workers of further models that take turns: their sizes stay, and whether they sleep is shown."""
    return [
        {
            "role": "decode",
            "served_name": more.model_name,
            "min_workers": more.decode,
            "max_workers": more.decode,
            "mode": "none",
            "model_digest": digest_in(ends.digests.get(more.model_path, "")),
        }
        for more in options.more_models
        if more.is_shared
    ]


def _object_store(options: UpOptions, ends: Endpoints) -> dict[str, str]:
    settings = {"OBJECT_STORE__URL": ends.object_store_url}
    if options.s3_endpoint_url:
        settings["OBJECT_STORE__S3_ENDPOINT_URL"] = options.s3_endpoint_url
    return settings
