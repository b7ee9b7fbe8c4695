"""Choices that follow from the kind of device alone: steps, processes and kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, supported_sets
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.plan import SizingChoice

TILES, NO_KERNELS = "amx", "torch"


def engine_process_for(device: str) -> Literal["thread", "process"]:
    """Where an engine on ``device`` runs: launching kernels competes with sockets for the interpreter's lock."""
    return "process" if device == "cuda" else "thread"


def device_choices(device: str, scheduler: SchedulerConfig, engine_process: str = "auto") -> tuple[SizingChoice, ...]:
    """Token budget, overlap and process, as they are set or as the device decides."""
    is_gpu = device == "cuda"
    kind = "on a GPU" if is_gpu else "on a CPU"
    budget = scheduler.for_device(device).token_budget
    overlap = is_gpu if scheduler.switches.overlap is None else scheduler.switches.overlap
    process = engine_process_for(device) if engine_process == "auto" else engine_process
    return (
        SizingChoice("token budget", f"{budget:,}", kind if scheduler.max_num_batched_tokens is None else "as set"),
        SizingChoice("overlap", "on" if overlap else "off", kind if scheduler.switches.overlap is None else "as set"),
        SizingChoice("engine", process, kind if engine_process == "auto" else "as set"),
    )


def kernels_choice(config: RunnerConfig, cpu_flags: frozenset[str], folder: Path = SOURCE_FOLDER) -> SizingChoice:
    """The build of the C++ kernels that a CPU engine loads, and which machines it exchanges KV with."""
    if not config.kernels.native_kernels:
        return SizingChoice("kernels", NO_KERNELS, "as set; KV is exchanged with such machines only")
    builds = [isa.name for isa in supported_sets(cpu_flags) if config.native_isa in ("auto", isa.name)]
    built = [name for name in builds if (folder / f"kernels-{name}.so").exists()]
    if not built:
        return SizingChoice("kernels", NO_KERNELS, "slower: " + _why_none(cpu_flags, builds))
    if built[0] == TILES and config.native_isa == "auto":
        other = "for a pool with others set native_isa to avx512-bf16 on all"
        return SizingChoice("kernels", TILES, f"16-bit KV is exchanged exactly with AMX machines only; {other}")
    return SizingChoice("kernels", built[0], f"16-bit KV is exchanged exactly with machines that take {built[0]} too")


def keeps_codes(config: RunnerConfig, *, is_gpu: bool) -> bool:
    """Whether blocks of GGUF files and coded experts stay codes: the C++ kernels alone have products for them."""
    switches = config.kernels
    if is_gpu or not (switches.kept_codes and switches.native_gemm):
        return False
    return kernels_choice(config, cpu_flags()).value != NO_KERNELS


def _why_none(cpu_flags: frozenset[str], builds: list[str]) -> str:
    if "asimd" in cpu_flags:
        return "the C++ kernels are written for x86-64, and this is an ARM processor"
    if not builds:
        return "the processor has no instruction set that the C++ kernels are written for"
    return "the C++ kernels are not built; install a C++ compiler and run python -m stratos.engine.native.build"
