"""The checks of ``stratos doctor``: pure, each from facts to one finding or a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.device import TILES, kernels_choice
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.plan import EnginePlan, size
from stratos.engine.sizing.report import machine_line
from stratos.kv_transfer.settings import StagingConfig
from stratos.selfcheck.findings import Finding, fail, ok, warn
from stratos.selfcheck.machine.environment import GpuFacts, RedisFacts

MANY_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Token budgets above which one step holds up the streams for seconds, and takes gigabytes of activations."""
HIGH_UTILISATION = 0.92
MAX_SKEW_S, SMALL_SKEW_S = 30.0, 1.0
LEAST_FREE_BYTES = 512 << 20
LONG_CONTEXT = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFleet:
    """Workers that are to run on the machine."""

    num_workers: int
    threads: int
    """Threads of each worker; 0 shares the cores."""
    device: str = "cpu"


def check_processor(machine: Machine, config: RunnerConfig, folder: Path) -> Finding:
    """Vector units, and whether kernels for them are there."""
    kernels = kernels_choice(config, machine.cpu_flags, folder)
    if kernels.value == "torch":
        return warn("processor", f"{machine_line(machine)}; {kernels.reason}", "expect a fraction of the speed")
    if TILES in kernels.value or "amx_bf16" not in machine.cpu_flags:
        return ok("processor", f"{machine_line(machine)}; kernels {kernels.value}")
    return warn(
        "processor",
        f"{machine_line(machine)}; kernels {kernels.value}, without the processor's tiles",
        "build them: python -m stratos.engine.native.build, and leave native_isa at auto",
    )


def check_compiler(compiler: str | None, has_kernels: bool, device: str = "cpu") -> Finding:
    """A C++ compiler is wanted until the kernels are built; on a GPU one is wanted at every start, by Triton."""
    if compiler:
        return ok("compiler", compiler)
    if device == "cuda":
        return fail("compiler", "none, and Triton needs one", "install gcc and Python's headers")
    if has_kernels:
        return ok("compiler", "none, and none is needed: the kernels are built")
    return fail("compiler", "no C++ compiler, and no kernels are built", "install g++ and run make setup again")


def check_drivers(gpus: GpuFacts, fleet: PlannedFleet) -> Finding:
    """GPUs that are wanted need a driver and device nodes; GPUs that are there may be wanted."""
    if fleet.device == "cuda":
        if not gpus.num_devices or not gpus.driver:
            seen = "no driver" if not gpus.driver else "no device node /dev/nvidia*"
            advice = "install the NVIDIA driver, or give the container its GPU (runtime class, device plugin)"
            return fail("drivers", f"device is cuda, and there is {seen}", advice)
        return ok("drivers", f"{fleet.num_workers} workers share one GPU of {gpus.num_devices}, {gpus.driver}")
    if gpus.num_devices:
        return warn("drivers", f"{gpus.num_devices} GPUs that are not used", "set DEVICE=cuda for the workers")
    return ok("drivers", "no GPU, and none is asked for")


def check_memory(machine: Machine, plan: EnginePlan | str, fleet: PlannedFleet) -> Finding:
    """The plan for every worker, or the text of its refusal; beside a GPU the memory of its host alone."""
    if isinstance(plan, str):
        return fail("memory", plan, "the numbers above say what is missing")
    takes = f"each of {fleet.num_workers} workers takes a KV pool of {size(plan.kv_pool_bytes)}"
    if fleet.device == "cuda":
        takes = "a worker plans the memory of its GPU when it starts"
    text = f"{size(machine.available_bytes)} free ({machine.limited_by}); {takes}"
    if machine.available_bytes and machine.available_bytes < LEAST_FREE_BYTES:
        return warn("memory", text, "end other programs, or give the container more")
    return ok("memory", text)


def check_shm(free_bytes: int | None, directory: Path, staging: StagingConfig, num_sources: int) -> Finding:
    """Staging memory of the shm transport: one ring for each source."""
    if free_bytes is None:
        return fail(
            "shm", f"{directory} cannot be written", "name another TRANSPORT__SHM_DIRECTORY, or use gloo or tls"
        )
    ring = staging.slot_bytes * staging.slots_per_pair
    need = ring * max(1, num_sources)
    text = f"{size(free_bytes)} free for {directory}, {size(need)} for the rings of {max(1, num_sources)} sources"
    if free_bytes >= need:
        return ok("shm", text)
    advice = "raise it (docker --shm-size, a memory emptyDir on Kubernetes) or lower TRANSPORT__STAGING__SLOTS_PER_PAIR"
    return fail("shm", text, advice)


def check_port(host: str, port: int, problem: str) -> Finding:
    """The gateways' port."""
    if not problem:
        return ok("ports", f"{host}:{port} is free")
    if 0 < port < 1024 and "ermission" in problem:
        return fail("ports", f"{host}:{port}: {problem}", "take a port from 1024 on, or allow low ports to the process")
    if "in use" in problem:
        return warn("ports", f"{host}:{port} is taken", "stratos up takes the next free one; name another with --port")
    return fail("ports", f"{host}:{port}: {problem}", "name an address of this machine with --host")


def check_redis(facts: RedisFacts | None) -> Finding:
    """``None``: the platform brings its own."""
    if facts is None:
        return ok("redis", "the embedded one; name another with --redis-url")
    if facts.problem:
        return fail("redis", facts.problem, "correct --redis-url (REDIS_URL), or start that Redis")
    text = f"version {facts.version}, maxmemory-policy {facts.eviction or 'unknown'}"
    if facts.eviction not in ("", "noeviction"):
        advice = "set maxmemory-policy noeviction: a Redis that is full would drop tenants and keys"
        return fail("redis", text, advice)
    return ok("redis", text)


def check_object_store(url: str, problem: str) -> Finding:
    """Weights of adapters and the manifest lie there."""
    if problem:
        return fail("object store", f"{url}: {problem}", "correct --object-store, its endpoint and credentials")
    return ok("object store", f"{url} answers")


def check_clock(now_s: float, newest_change_s: float, redis: RedisFacts | None) -> Finding:
    """Certificates, tokens and expiries need the time; a Redis gives a second opinion."""
    advice = "let NTP set the clock (timedatectl set-ntp true)"
    if now_s + SMALL_SKEW_S < newest_change_s:
        days = (newest_change_s - now_s) / 86400
        return fail("clock", f"it is {days:.1f} days before the time at which this software was installed", advice)
    if redis is None or redis.problem:
        return ok("clock", "not before the installation; no other clock was asked")
    text = f"{abs(redis.skew_s):.2f} s from the Redis' clock"
    if abs(redis.skew_s) > MAX_SKEW_S:
        return fail("clock", text, advice)
    return warn("clock", text, advice) if abs(redis.skew_s) > SMALL_SKEW_S else ok("clock", text)


def check_certificates(folder: Path | None, results: Sequence[tuple[str, str]]) -> list[Finding]:
    """(Line about files, why not) of each folder; one of the two is empty."""
    if folder is None:
        return [ok("certificates", "none asked for: calls between processes are plain text")]
    if not results:
        advice = "give a folder with tls.crt, tls.key and ca.crt, or one with a folder of these for each role"
        return [fail("certificates", f"{folder} holds none", advice)]
    advice = "make them again: stratos certificates renew"
    return [fail("certificates", why, advice) if why else ok("certificates", line) for line, why in results]


def check_settings(
    machine: Machine, fleet: PlannedFleet, config: RunnerConfig, scheduler: SchedulerConfig
) -> list[Finding]:
    """Settings that start, and disappoint later."""
    found: list[Finding] = []
    threads = fleet.num_workers * max(1, fleet.threads)
    if fleet.device == "cpu" and threads > machine.num_cores:
        text = f"{fleet.num_workers} workers with {max(1, fleet.threads)} threads on {machine.num_cores} cores"
        advice = "workers that share a core wait for each other in every step: start fewer, or take fewer threads"
        found.append(fail("cores", text, advice))
    budget, most = scheduler.for_device(fleet.device).token_budget, MANY_TOKENS[fleet.device]
    if budget > most:
        text = f"max_num_batched_tokens is {budget:,}"
        found.append(fail("token budget", text, f"at most {most:,}: streams stand still while such a step runs"))
    if fleet.device == "cuda" and config.gpu_memory_utilization > HIGH_UTILISATION:
        text = f"gpu_memory_utilization is {config.gpu_memory_utilization:g}"
        advice = f"at most {HIGH_UTILISATION:g}: another process on the GPU, or fragments, end the worker in mid-stream"
        found.append(fail("utilisation", text, advice))
    return found or [ok("settings", f"{fleet.num_workers} workers, {budget:,} tokens a step")]


def check_length(model_len: int, config: RunnerConfig, plan: EnginePlan | str) -> Finding:
    """A model's whole context is seldom what one request should be able to take."""
    if isinstance(plan, str):
        return warn("length", f"the model's context is {model_len:,}", "set --max-model-len to what requests need")
    if plan.max_model_len < model_len and not config.max_model_len:
        text = f"no maximum length is set: the pool holds {plan.max_model_len:,} of the model's {model_len:,} tokens"
        return warn("length", text, "set --max-model-len, so that all workers and machines offer the same")
    if model_len > LONG_CONTEXT and not config.max_model_len:
        text = f"no maximum length is set: one request may take the KV of {model_len:,} tokens"
        return warn("length", text, "set --max-model-len to what requests need")
    return ok("length", f"sequences of at most {plan.max_model_len:,} tokens")
