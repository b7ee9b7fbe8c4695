"""Measure a decode step with adapters beside one without, by turns, on one thread.

    OMP_NUM_THREADS=1 python -m scripts.bench.adapters_step --out benchmarks/results/adapters-step-2core-cpu.json

Each stream has an adapter of its own, or as many share one as --active leaves; all are resident before anything is
timed.  Adapters are random and lie on the projections that the arm names.  A figure is CPU time of the thread per step,
since the machine may be shared: the median over some steps of all rounds.  "layered" arms turn the pass of steps with
adapters in one call off.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scripts.bench.decode_steps import timed_steps
from scripts.bench.harness import MODEL, by_turns, flag, run_bench, show, table
from scripts.bench.workloads import request, run_out, tokens
from scripts.demo.make_random_model import TOKENIZER
from stratos.core.files.adapter_files import read_adapter_files
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.switches import KernelSwitches
from stratos.reproduce.material.random_model import write_adapter, write_model

STREAMS, CONTEXT = 32, 128
MODELS: dict[str, Literal["float32", "bfloat16"]] = {"213M": "bfloat16", "5.5M": "float32"}
SETS = {"q,v": ("q_proj", "v_proj"), "attention": ("q_proj", "k_proj", "v_proj", "o_proj")}


@dataclass(frozen=True, slots=True)
class Arm:
    """Adapters of a batch, and how the step runs."""

    rank: int = 0
    """0: the base model alone."""
    projections: str = ""
    active: int = 0
    is_whole: bool = True

    @property
    def name(self) -> str:
        """As in the table."""
        if not self.rank:
            return "base"
        return f"{self.active} of rank {self.rank}, {self.projections}{'' if self.is_whole else ', layered'}"


class Engines:
    """One model in two engines, whose steps with adapters are one call and many."""

    def __init__(self, model: Path, dtype: Literal["float32", "bfloat16"], adapters: Path, arms: list[Arm]) -> None:
        self._by_pass = {is_whole: _engine(model, dtype, is_whole) for is_whole in {arm.is_whole for arm in arms}}
        self._shape, self._folder = read_shape(model), adapters

    def measure(self, arm: Arm, turn: int) -> dict[str, float]:
        """Medians over some steps of a batch of its own."""
        engine, rng = self._by_pass[arm.is_whole], random.Random(turn)
        digests = [self._resident(engine, arm, number) for number in range(arm.active)] or [""]
        streams = [
            request(rng, tokens(engine, rng, CONTEXT), 600, adapter_digest=digests[index % len(digests)])
            for index in range(STREAMS)
        ]
        for stream in streams:
            engine.add(stream)
        started = 0
        while started < STREAMS:
            started += sum(output.offset == 0 for output in engine.step().outputs)
        engine.step()
        found = timed_steps(engine)
        for stream in streams:
            engine.abort(stream.key)
        run_out(engine)
        show({"round": turn, "arm": arm.name, **found})
        return found

    def _resident(self, engine: EngineCore, arm: Arm, number: int) -> str:
        folder = self._folder / f"{arm.rank}-{arm.projections}-{number}"
        if not folder.exists():
            write_adapter(self._shape, folder, arm.rank, number, SETS[arm.projections])
        files = read_adapter_files(folder)
        engine.load_adapter(files)
        return files.digest


def read_shape(model: Path) -> dict[str, int]:
    """Sizes of a model, by the names of its configuration."""
    found: dict[str, int] = json.loads((model / "config.json").read_text())
    return found


def _engine(model: Path, dtype: Literal["float32", "bfloat16"], is_whole: bool) -> EngineCore:
    config = RunnerConfig(
        model_path=model, dtype=dtype, num_threads=1, kv_pool_bytes=384 * 1024 * 1024, max_resident_adapters=STREAMS,
        kernels=KernelSwitches(whole_step_adapters=is_whole),
    )  # fmt: skip
    return EngineCore(TorchRunner.load(config), SchedulerConfig(step_time_budget_ms=100.0))


def arms_of(args: argparse.Namespace) -> list[Arm]:
    """Base first."""
    passes = (True, False) if args.layered else (True,)
    return [Arm()] + [
        Arm(rank, projections, active, is_whole)
        for rank in args.ranks for projections in args.projections for active in args.active for is_whole in passes
    ]  # fmt: skip


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every arm of every model."""
    rows, arms = [], arms_of(args)
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            path = MODEL
            if model == "213M":
                path = Path(folder, model)
                write_model("llama-213m", path, TOKENIZER)
            engines = Engines(path, MODELS[model], Path(folder), arms)
            runs = by_turns(args.rounds, arms, engines.measure)
        base = [run["step_ms"] for run in runs[arms[0]]]
        for arm, found in runs.items():
            steps = [run["step_ms"] for run in found]
            share = statistics.median(b / s for b, s in zip(base, steps, strict=True))
            row = {"model": model, "arm": arm.name, "step_ms": round(statistics.median(steps), 2),
                   "of_base": round(share, 3), "runs": found}  # fmt: skip
            rows.append(row)
            show({name: value for name, value in row.items() if name != "runs"})
    lines = table(("model", "arm", "step ms", "tokens/s of base"), [
        (row["model"], row["arm"], f"{row['step_ms']:.2f}", f"{row['of_base']:.2f}x") for row in rows
    ])  # fmt: skip
    return {"streams": STREAMS, "context": CONTEXT, "rounds": args.rounds, "rows": rows, "table": lines}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--models", choices=tuple(MODELS), nargs="+", default=list(MODELS)),
        flag("--ranks", type=int, nargs="+", default=[4, 16]),
        flag("--projections", choices=tuple(SETS), nargs="+", default=["attention"]),
        flag("--active", type=int, nargs="+", default=[STREAMS]),
        flag("--layered", action="store_true", help="measure steps with adapters operation by operation, too"),
        flag("--rounds", type=int, default=3),
    )
