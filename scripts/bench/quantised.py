"""Measure decode and prompts of one model by scheme of its weights, by turns in one process.

    python -m scripts.bench.quantised --out benchmarks/results/quantised-{cpu}-2core-cpu.json

The model is a random Llama of 213 M parameters in bfloat16, quantised at load, or read from a GGUF file with the same
weights (``Q4_K``).  A figure is CPU time of the engine's one thread: the machine may be shared.  With more
``--threads`` it is time by the clock, and the machine may not.  Decode is a step of so many streams behind prompts of
64 tokens; a prompt has 1,024 tokens of its own.  ``--kv`` compares one byte of KV with two instead, in decode of eight
streams behind 3,840 tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench.ablation import with_blocks
from scripts.bench.harness import flag, run_bench
from scripts.bench.workloads import request, run_out, tokens
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.switches import KernelSwitches
from stratos.reproduce.material.random_model import write_model

SCHEMES = ("auto", "int8", "int8, no tiles", "int8+head", "int4", "int4+head", "fp8")
"""Values of ``--quantization``, and whether bytes are multiplied without tiles."""
BLOCKS = ("Q4_K",)
"""Types of blocks of GGUF files."""
KV = ("auto", "kv int8", "kv fp8")
CONTEXT, PROMPT, STEPS = 64, 1024, 6
ROOT = Path(__file__).resolve().parents[2]
Clock = Callable[[], float]


def load(folder: Path, scheme: str, num_threads: int) -> EngineCore:
    """An engine of so many threads."""
    value, _, without = scheme.partition(", ")
    kv = "auto"
    if value in KV:
        value, kv = "auto", value.removeprefix("kv ")
    elif value in BLOCKS:
        folder, value = with_blocks(folder, value), "auto"
    config = RunnerConfig(
        model_path=folder,
        dtype="bfloat16",
        quantization=value,  # type: ignore[arg-type]  # one of SCHEMES
        kernels=KernelSwitches(integer_tiles=not without),
        kv_dtype=kv,  # type: ignore[arg-type]
        num_threads=num_threads,
        kv_pool_bytes=1 << 30 if scheme in KV else 256 << 20,
    )
    return EngineCore(TorchRunner.load(config), SchedulerConfig(step_time_budget_ms=0))


def decode_ms(
    engine: EngineCore, rng: random.Random, num_streams: int, context: int = CONTEXT, clock: Clock = time.thread_time
) -> float:
    """Median of a step in which every stream decodes, behind prompts of so many tokens."""
    until_all_decode = num_streams + num_streams * context // 400  # steps
    for _ in range(num_streams):
        engine.add(request(rng, tokens(engine, rng, context), STEPS + 8 + until_all_decode))
    started = 0
    while started < num_streams:
        started += sum(output.offset == 0 for output in engine.step().outputs)
    engine.step()
    times = []
    for _ in range(STEPS):
        begin = clock()
        engine.step()
        times.append(clock() - begin)
    run_out(engine)
    return statistics.median(times) * 1e3


def prompt_ms(engine: EngineCore, rng: random.Random, clock: Clock) -> float:
    """Computation of one prompt up to its first token."""
    prompt = tokens(engine, rng, PROMPT)
    begin = clock()
    engine.add(request(rng, prompt, 1))
    run_out(engine)
    return (clock() - begin) * 1e3


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the ratio to bfloat16 in the same rounds."""
    rng, clock = random.Random(0), time.thread_time if args.threads == 1 else time.perf_counter
    kinds, streams, context = (KV, (8,), 3840) if args.kv else ((*SCHEMES, *BLOCKS), (1, 8, 32), CONTEXT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        write_model("llama-213m", folder, ROOT / "models" / "base")
        engines = {scheme: load(folder, scheme, args.threads) for scheme in kinds}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(args.rounds):
        for num_streams in streams:
            for scheme, engine in engines.items():
                row = found.setdefault(f"decode, {num_streams} streams", {})
                row.setdefault(scheme, []).append(decode_ms(engine, rng, num_streams, context, clock))
        for scheme, engine in () if args.kv else engines.items():
            row = found.setdefault(f"prompt of {PROMPT} tokens", {})
            row.setdefault(scheme, []).append(prompt_ms(engine, rng, clock))
    rows = [{"load": name, **_summary(by_scheme)} for name, by_scheme in found.items()]
    numerics = {scheme: engine.info.identity.numerics_id for scheme, engine in engines.items()}
    weights = {scheme: engine.info.step_weight_bytes for scheme, engine in engines.items()}
    return {"model": "random Llama, 213 M parameters", "dtype": "bfloat16", "threads": args.threads,
            "rounds": args.rounds, "numerics": numerics, "weight_bytes_read": weights, "rows": rows}  # fmt: skip


def _summary(by_scheme: dict[str, list[float]]) -> dict[str, Any]:
    return {
        scheme: {
            "ms": round(statistics.median(times), 2),
            "times_as_fast": round(
                statistics.median(base / own for base, own in zip(by_scheme["auto"], times, strict=True)), 2
            ),
        }
        for scheme, times in by_scheme.items()
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rounds", type=int, default=3, help="rounds, each of every scheme and load"),
        flag("--threads", type=int, default=1, help="of each engine"),
        flag("--kv", action="store_true", help="one byte of KV beside two, in place of schemes of weights"),
    )
