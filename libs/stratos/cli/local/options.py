"""What ``stratos up`` was asked to do, after checking; everything below receives this and reads no flag itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest

MAX_WORKERS = 16
MAX_REPLICAS = 8
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """One platform on this machine."""

    model_path: Path
    shipped_model_path: Path | None = None
    """The model folder of this repository, if there is one; its adapters are offered with it alone."""
    host: str = "127.0.0.1"
    port: int = 8000
    """First port tried for the gateways; busy ones are skipped."""
    admin_port: int = 8001
    """First port tried for the admin API, which is on loopback whatever ``host`` is."""
    gateways: int = 1
    """They share the port."""
    routers: int = 1
    prefill: int = 1
    decode: int = 1
    max_decode: int = 0
    """Most decode workers the autoscaler may run; 0 allows one more than ``decode`` where cores are left for it."""
    data_dir: Path = Path(".stratos")
    redis_url: str = ""
    """Empty starts the embedded one."""
    object_store_url: str = ""
    """Empty is a folder in the data directory."""
    s3_endpoint_url: str = ""
    engine: str = "torch"
    dtype: str = "auto"
    """Compute and KV type of the workers; "auto" takes what suits model and machine."""
    max_model_len: int = 0
    """Longest sequence; 0 takes the model's context, or what fits."""
    kv_pool_bytes: int = 0
    """KV pool of each worker; 0 lets each choose for itself."""
    threads: int = 0
    """Threads of one operation in each worker; 0 shares the cores among the workers."""
    transport: str = "shm"
    mtls: bool = False
    """Encrypt calls between the processes, and let each call only what its role may."""
    otlp_endpoint: str = ""
    """Where every process sends its spans; empty turns tracing off."""
    observe: bool = False
    """Start a Prometheus beside the platform."""
    log_level: str = "info"
    keep_logs: bool = False
    drain_timeout_s: float = 5.0
    """Longest wait for open streams at the end; a laptop's Ctrl-C should not take half a minute."""

    def __post_init__(self) -> None:
        """Check ranges; raises ``BadRequest`` with the flag's name."""
        if not 0 <= self.threads <= MAX_THREADS:
            raise BadRequest(f"--threads must be between 0 and {MAX_THREADS}, not {self.threads}", param="--threads")
        for flag, value, least, most in (
            ("--gateways", self.gateways, 1, MAX_REPLICAS),
            ("--routers", self.routers, 1, MAX_REPLICAS),
            ("--prefill", self.prefill, 0, MAX_WORKERS),
            ("--decode", self.decode, 1, MAX_WORKERS),
        ):
            if not least <= value <= most:
                raise BadRequest(f"{flag} must be between {least} and {most}, not {value}", param=flag)
        if self.max_decode and not self.decode <= self.max_decode <= MAX_WORKERS:
            raise BadRequest(f"--max-decode must be between --decode and {MAX_WORKERS}", param="--max-decode")
        for flag, value in (("--port", self.port), ("--admin-port", self.admin_port)):
            if not 1 <= value <= 65535:
                raise BadRequest(f"{flag} must be between 1 and 65535, not {value}", param=flag)
        if self.max_model_len < 0:
            raise BadRequest(f"--max-model-len must not be negative, not {self.max_model_len}", param="--max-model-len")
        for flag, text, allowed in (
            ("--engine", self.engine, ("torch", "fake")),
            ("--dtype", self.dtype, ("auto", "float32", "bfloat16", "float16")),
            ("--transport", self.transport, ("shm", "gloo", "tls")),
        ):
            if text not in allowed:
                raise BadRequest(f"{flag} must be one of {', '.join(allowed)}, not {text!r}", param=flag)

        if (self.transport == "tls") > self.mtls:
            raise BadRequest("--transport tls needs --mtls", param="--transport")
        if self.transport == "gloo" and self.mtls:
            raise BadRequest("--transport gloo does not encrypt; with --mtls take tls", param="--transport")

    @property
    def decode_limit(self) -> int:
        """Upper bound of decode workers. Unasked, none is added on cores that the first ones have already."""
        num_taken = self.threads_per_worker * (self.prefill + self.decode)
        has_room = num_cores() - num_taken >= self.threads_per_worker
        return self.max_decode or min(self.decode + has_room, MAX_WORKERS)

    @property
    def model_name(self) -> str:
        """Name that clients use as "model": the folder's."""
        return self.model_path.name

    @property
    def threads_per_worker(self) -> int:
        """Cores shared by the workers that start with the platform; one thread is the least."""
        return self.threads or max(1, num_cores() // max(1, self.prefill + self.decode))

    @property
    def uses_shipped_model(self) -> bool:
        """The model is the one that came with the repository."""
        return self.shipped_model_path is not None and self.model_path == self.shipped_model_path


def num_cores() -> int:
    """Cores that this process may use, and so its workers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
