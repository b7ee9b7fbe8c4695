"""Options of ``stratos up``: its flags, declared here alone, and checked; everything below receives this record."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from stratos.cli.data.speculative_config import parse_speculative_config
from stratos.common.errors import BadRequest
from stratos.core.files.gguf.parts import is_gguf
from stratos.engine.checkpoint.weight_schemes import AT_LOAD, ROUNDED
from stratos.store.registry.catalogue import is_reference, parse_reference

DataDirOption = Annotated[Path, Option("--data-dir", help="Where the platform keeps its data.")]
DEFAULT_DATA_DIR = Path(".stratos")
MAX_WORKERS = 16
MAX_REPLICAS = 8
MAX_THREADS = 1024
MAX_KV_DISK_GIB, MAX_KV_HOST_GIB = 1 << 20, 1 << 12
GPU_MEMORY = 0.9
"""Of a GPU's memory for all workers: what kernels load at their first use is in no plan."""
HOST_MEMORY = 0.25
"""Of the host's free memory for evicted KV of all workers on a GPU."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_WORKERS = re.compile(r"(.+)=(\d{1,3})\+(\d{1,3})(?::([1-9]\d{0,6})MiB)?\Z", re.ASCII)
MODEL_FLAG = "--model"
WORKERS_FLAG = "--workers"
SHARE_FLAG = "--share-device"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """One platform on this machine."""

    model_path: Path
    source: str = ""
    """Its reference in the registry; ``model_path`` is then where this machine keeps it."""
    name: str = ""
    """Name that clients use as "model"; empty takes the folder's."""
    more_models: tuple[UpOptions, ...] = ()
    """Further models behind the same gateways, each with workers of its own."""
    num_other_workers: int = 0
    """Workers of other models, with which these share the machine."""
    shipped_model_path: Path | None = None
    """The model folder of this repository, if there is one; its adapters are offered with it alone."""
    gateways: Annotated[int, Option(help="Gateways; they share the port.")] = 1
    routers: Annotated[int, Option(help="Routers; every gateway knows all of them.")] = 1
    prefill: Annotated[int, Option(help="Prefill workers; 0 lets decode workers compute prompts.")] = 1
    decode: Annotated[int, Option(help="Decode workers to start with; the autoscaler's minimum.")] = 1
    max_decode: Annotated[int, Option(help="Most decode workers; default: what the cores allow.")] = 0
    """0 allows one more than ``decode`` where cores are left for it."""
    spares: Annotated[int, Option(help="Decode workers beyond them that have loaded the first model, and wait.")] = 0
    """One takes the place of a decode worker that died, or that the autoscaler wants, at once."""
    spot: Annotated[int, Option(help="Decode workers of the first model beyond them, for the lowest class alone.")] = 0
    """They stand for workers that may vanish at any moment; the autoscaler does not count on them."""
    share_device: Annotated[str, Option(help="Models of --model that take turns in memory, by demand: a,b.")] = ""
    pools: Annotated[str, Option(help="Labels of the decode workers for plans, in order: fast,shared.")] = ""
    """Workers beyond the last label have none."""
    host: Annotated[str, Option(help="Address the gateways listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(help="First port tried for the gateways; busy ones are skipped.")] = 8000
    admin_port: Annotated[int, Option(help="First port tried for the admin API, on loopback.")] = 8001
    """On loopback whatever ``host`` is."""
    data_dir: DataDirOption = DEFAULT_DATA_DIR
    redis_url: Annotated[str, Option(envvar="REDIS_URL", help="Redis to use instead of the embedded one.")] = ""
    object_store_url: Annotated[
        str, Option("--object-store", help="file:///DIR or s3://BUCKET/PREFIX; default: in --data-dir.")
    ] = ""
    s3_endpoint_url: Annotated[str, Option("--s3-endpoint", help="Address of an S3 service that is not AWS.")] = ""
    engine: Annotated[str, Option(help="torch, or fake: tokens by arithmetic, for tests.")] = "torch"
    device: Annotated[str, Option(help="Where workers compute: cpu, or cuda: one GPU that they share.")] = "cpu"
    dtype: Annotated[str, Option(help="Type of weights and KV: auto, float32, bfloat16 or float16.")] = "auto"
    """"auto" takes what suits model and machine."""
    asked_dtype: str = ""
    """``dtype`` as it was asked for, where it was settled for the first model since."""
    quantization: Annotated[str, Option(help=f"Weights: auto (as stored); at load: {AT_LOAD}.")] = "auto"
    kv_cache_dtype: Annotated[str, Option(help="KV: auto (as --dtype), or int8, fp8 in one byte a number.")] = "auto"
    speculative_config: Annotated[
        str, Option(help='Drafts, e.g. {"method": "ngram", "num_speculative_tokens": 8}; empty: where they pay.')
    ] = ""
    """JSON, with the names that vLLM has."""
    max_model_len: Annotated[int, Option(help="Longest sequence; 0: the model's context, or what fits.")] = 0
    kv_pool_bytes: int = 0
    """KV pool of each worker; 0 lets each choose for itself."""
    kv_host: Annotated[
        str, Option("--kv-host", help="GiB of host memory for evicted KV of each worker, auto or off.")
    ] = "auto"
    """"auto" takes a part of what is free beside a GPU, and nothing on a CPU, whose KV pool is that memory."""
    kv_disk_gib: Annotated[
        int, Option("--kv-disk", help="GiB of --data-dir for evicted KV of each worker; 0: none.")
    ] = 0
    threads: Annotated[int, Option(help="Threads of each worker; 0 shares the cores among them.")] = 0
    transport: Annotated[str, Option(help="KV transport between workers: shm, gloo, tls, or on a GPU cuda_ipc.")] = (
        "shm"
    )
    lenient: Annotated[bool, Option("--lenient", help="Ignore fields of requests that are not known.")] = False
    """Answers name them in a header."""
    mtls: Annotated[bool, Option("--mtls", help="Certificates and encryption between all processes.")] = False
    """Each call is then allowed only what the role of its caller may do."""
    otlp_endpoint: Annotated[str, Option(help="Collector of traces, e.g. http://localhost:4317.")] = ""
    """Every process sends its spans there; empty turns tracing off."""
    observe: Annotated[bool, Option("--observe", help="Start a Prometheus beside the platform.")] = False
    log_level: Annotated[str, Option(help="debug, info, warning or error.")] = "info"
    keep_logs: Annotated[bool, Option(help="Keep the run's log files after a clean stop.")] = False
    drain_timeout_s: Annotated[
        float, Option("--drain-timeout", min=0.1, help="Seconds that open streams have at the end of a process.")
    ] = 5.0
    """A laptop's Ctrl-C should not take half a minute."""

    def __post_init__(self) -> None:
        """Check ranges; raises ``BadRequest`` with the flag's name."""
        if not 0 <= self.threads <= MAX_THREADS:
            raise BadRequest(f"--threads must be between 0 and {MAX_THREADS}, not {self.threads}", param="--threads")
        if self.kv_host not in ("auto", "off") and not 0 < self.kv_host_gib <= MAX_KV_HOST_GIB:
            raise BadRequest(
                f"--kv-host must be auto, off or 1 to {MAX_KV_HOST_GIB} (GiB), not {self.kv_host!r}", param="--kv-host"
            )
        for flag, value, least, most in (
            ("--gateways", self.gateways, 1, MAX_REPLICAS),
            ("--routers", self.routers, 1, MAX_REPLICAS),
            ("--prefill", self.prefill, 0, MAX_WORKERS),
            ("--decode", self.decode, 0, MAX_WORKERS),
            ("--spares", self.spares, 0, MAX_WORKERS if self.decode else 0),
            ("--spot", self.spot, 0, MAX_WORKERS if self.decode else 0),
            ("--kv-disk", self.kv_disk_gib, 0, MAX_KV_DISK_GIB),
        ):
            if not least <= value <= most:
                raise BadRequest(f"{flag} must be between {least} and {most}, not {value}", param=flag)
        if self.max_decode and not self.decode <= self.max_decode <= MAX_WORKERS:
            raise BadRequest(f"--max-decode must be between --decode and {MAX_WORKERS}", param="--max-decode")
        for mine, count in (("--spares", self.spares), ("--spot", self.spot)):
            for flag, other in (("--share-device", self.share_device), ("--pools", self.pools)):
                if count and other:
                    raise BadRequest(f"{mine} does not go with {flag}", param=mine)
        for flag, value in (("--port", self.port), ("--admin-port", self.admin_port)):
            if not 1 <= value <= 65535:
                raise BadRequest(f"{flag} must be between 1 and 65535, not {value}", param=flag)
        if self.max_model_len < 0:
            raise BadRequest(f"--max-model-len must not be negative, not {self.max_model_len}", param="--max-model-len")
        for flag, text, allowed in (
            ("--engine", self.engine, ("torch", "fake")),
            ("--device", self.device, ("cpu", "cuda")),
            ("--dtype", self.dtype, ("auto", "float32", "bfloat16", "float16")),
            ("--quantization", self.quantization, ("auto", *ROUNDED)),
            ("--kv-cache-dtype", self.kv_cache_dtype, ("auto", "int8", "fp8")),
            ("--transport", self.transport, ("shm", "gloo", "tls", "cuda_ipc")),
        ):
            if text not in allowed:
                raise BadRequest(f"{flag} must be one of {', '.join(allowed)}, not {text!r}", param=flag)
        parse_speculative_config(self.speculative_config)
        if (self.transport == "tls") > self.mtls:
            raise BadRequest("--transport tls needs --mtls", param="--transport")
        if self.transport == "cuda_ipc" and self.device != "cuda":
            raise BadRequest("--transport cuda_ipc needs --device cuda", param="--transport")
        if self.transport == "gloo" and self.mtls:
            raise BadRequest("--transport gloo does not encrypt; with --mtls take tls", param="--transport")

    @property
    def decode_limit(self) -> int:
        """Upper bound of decode workers. Unasked, none is added on cores that the first ones have already, or a GPU."""
        if self.device == "cuda":
            return self.max_decode or max(1, self.decode)
        if self.is_shared:
            return self.decode
        num_taken = self.threads_per_worker * self.num_workers
        has_room = num_cores() - num_taken >= self.threads_per_worker
        return self.max_decode or max(1, min(self.decode + has_room, MAX_WORKERS))

    @property
    def sharers(self) -> tuple[str, ...]:
        """Names of the models that share a device, the one that has it first before the others."""
        return tuple(name.strip() for name in self.share_device.split(",")) if self.share_device else ()

    @property
    def is_shared(self) -> bool:
        """This model takes turns with others."""
        return self.model_name in self.sharers

    @property
    def transports(self) -> tuple[str, ...]:
        """Names for the workers, best first: from one GPU to another process of it, else by the host's memory."""
        return ("cuda_ipc", "shm") if self.transport == "cuda_ipc" else (self.transport,)

    def pool_of(self, worker: str) -> str:
        """The label of a worker, such as that of decode-1."""
        role, _, number = worker.rpartition("-")
        labels = self.pools.split(",") if role == "decode" else []
        return labels[int(number)].strip() if number.isdigit() and int(number) < len(labels) else ""

    @property
    def gpu_share(self) -> float:
        """Part of the one GPU's memory that each worker may take."""
        return GPU_MEMORY / self.most_workers

    @property
    def kv_host_gib(self) -> int:
        """GiB of host memory for evicted KV of each worker, as they were asked for; 0 where none were."""
        return int(self.kv_host) if re.fullmatch("[0-9]{1,4}", self.kv_host) else 0

    @property
    def host_share(self) -> float:
        """Part of the host's free memory that evicted KV of each worker may take beside the GPU."""
        return HOST_MEMORY / self.most_workers if self.kv_host == "auto" and self.device == "cuda" else 0.0

    @property
    def model_name(self) -> str:
        """Name that clients use as "model"."""
        return self.name or self.model_path.name

    @property
    def num_workers(self) -> int:
        """Workers that start with the platform and compute at a time, of all models."""
        return self.num_own_workers + self.num_other_workers

    @property
    def most_workers(self) -> int:
        """Workers that have memory at a time, at most: those to come and the spares included."""
        return self.num_workers + self.decode_limit - self.decode + self.spares

    @property
    def num_own_workers(self) -> int:
        """Workers of this model alone."""
        return self.prefill + self.decode + self.spot

    @property
    def threads_per_worker(self) -> int:
        """Cores shared by the workers that start with the platform; one thread is the least."""
        return self.threads or max(1, num_cores() // max(1, self.num_workers))

    @property
    def uses_shipped_model(self) -> bool:
        """The model is the one that came with the repository."""
        return self.shipped_model_path is not None and self.model_path == self.shipped_model_path


def num_cores() -> int:
    """Cores that this process may use, and so its workers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def options_for(
    models: Sequence[str], shipped: Path | None, make: Callable[..., UpOptions], workers: Sequence[str] = ()
) -> UpOptions:
    """Options of a platform with these models, the first of which is the gateways' home.

    Args:
        models: as the flags have them; none takes the shipped model.
        shipped: the shipped model, if there is one.
        make: options from a model's path, its name, and what the other flags say.
        workers: of models that have others than those flags say, as "tools=0+1"; "tools=0+1:96MiB" has their KV pool.

    Raises:
        BadRequest: there is no model, two have one name, a further one has a name that no process can have, or workers
            are of no model.
    """
    if not models and shipped is None:
        raise BadRequest("no shipped model was found here; give a Hugging Face model folder with --model PATH")
    made = [
        make(model_path=path, name=name, shipped_model_path=shipped)
        for name, path in (parse_model(text) for text in models or [str(shipped)])
    ]
    made[1:] = [replace(more, spot=0) for more in made[1:]]
    names = [options.model_name for options in made]
    for name, count in Counter(names).items():
        if count > 1:
            raise BadRequest(
                f"{MODEL_FLAG}: {count} models have the name {name!r}; give it as {MODEL_FLAG} NAME=PATH",
                param=MODEL_FLAG,
            )
    for name in names[1:]:
        if not _NAME.match(name):
            text = (
                f"{MODEL_FLAG}: {name!r} cannot name the workers of a model; give another one as {MODEL_FLAG} NAME=PATH"
            )
            raise BadRequest(text, param=MODEL_FLAG)
    made = _with_workers(made, dict(map(_parse_workers, workers)))
    if any(not options.decode for options in made[1:]):
        text = f"--decode must be between 1 and {MAX_WORKERS}, not 0: the first model alone is scaled from zero"
        raise BadRequest(text, param="--decode")
    check_shared(made)
    return replace(made[0], more_models=tuple(made[1:]))


def _with_workers(models: Sequence[UpOptions], own: Mapping[str, Mapping[str, int]]) -> list[UpOptions]:
    """The models with workers as ``own`` has them by name, and with those of the others beside them."""
    if unknown := own.keys() - {model.model_name for model in models}:
        raise BadRequest(f"{WORKERS_FLAG}: no {MODEL_FLAG} is called {min(unknown)!r}", param=WORKERS_FLAG)
    found = [replace(model, **own.get(model.model_name, {})) for model in models]  # type: ignore[arg-type]  # of numbers
    alone = [model.num_own_workers for model in found if not model.is_shared]
    by_turns = [model.num_own_workers for model in found if model.is_shared]
    total = sum(alone) + max(by_turns, default=0)
    return [replace(model, num_other_workers=total - model.num_own_workers) for model in found]


def check_shared(models: Sequence[UpOptions]) -> None:
    """Raise ``BadRequest`` where models cannot share a device as the flags say."""
    first, names = models[0], models[0].sharers
    if not names:
        return
    known = [model.model_name for model in models]
    problem = ""
    if len(names) < 2 or "" in names:
        problem = "takes the names of two models or more: a,b"
    elif unknown := [name for name in names if name not in known]:
        problem = f"no {MODEL_FLAG} is called {unknown[0]!r}"
    elif twice := [name for name, count in Counter(names).items() if count > 1]:
        problem = f"names {twice[0]!r} twice"
    elif len({model.model_path.resolve() for model in models if model.is_shared}) < len(names):
        problem = "names one folder twice: these are one model, which needs no turns"
    elif first.is_shared and not first.decode:
        problem = f"workers of {first.model_name!r} sleep, so they are there from the start: raise --decode"
    elif first.is_shared and first.max_decode > first.decode:
        problem = "a model that takes turns keeps the workers that it starts with: leave --max-decode away"
    elif first.transport == "cuda_ipc":
        problem = "does not go with --transport cuda_ipc, by which workers hold each other's memory"
    if problem:
        raise BadRequest(f"{SHARE_FLAG}: {problem}", param=SHARE_FLAG)


def _parse_workers(text: str) -> tuple[str, Mapping[str, int]]:
    """Name of a model and the options of its workers, from "tools=0+1" or "tools=0+1:96MiB"."""
    if not (match := _WORKERS.match(text)):
        raise BadRequest(f"{WORKERS_FLAG} must be NAME=PREFILL+DECODE[:NMiB], not {text!r}", param=WORKERS_FLAG)
    prefill, decode, pool_mib = (int(number or 0) for number in match.groups()[1:])
    return match[1], {"prefill": prefill, "decode": decode, "kv_pool_bytes": pool_mib << 20}


def parse_model(text: str) -> tuple[str, Path]:
    """Name and path of a model; the name is empty where only a path is given, as every path is that exists.

    A reference to the registry stays one, in the place of the path.
    """
    name, is_named, rest = text.partition("=")
    if is_reference(text) or (is_named and is_reference(rest)):
        reference = parse_reference(text if is_reference(text) else rest, MODEL_FLAG)
        return (reference.name if is_reference(text) else name), Path(str(reference))
    path = Path(text)
    if is_named and _NAME.match(name) and not path.exists():
        path = Path(rest)
    else:
        name = ""
    # a GGUF file's link is not followed: its name is the model's, and what tells the parts
    return name, path.absolute() if is_gguf(path) else path.resolve()
