"""Measure a decode step of a model with experts, in one call and operation by operation, by turns, on one thread.

    OMP_NUM_THREADS=1 python -m scripts.bench.experts_step --out "benchmarks/results/experts-step-{cpu}-2core-cpu.json"

The models are random Mixtrals; a token's experts have as many features together as the MLP of the dense model beside
them.  A figure is CPU time of the thread per step, since the machine may be shared: the median over some steps of all
rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from scripts.bench.decode_steps import timed_steps
from scripts.bench.harness import by_turns, flag, run_bench, show, table
from scripts.bench.workloads import request, run_out, tokens
from scripts.demo.make_random_model import TOKENIZER
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.switches import KernelSwitches
from stratos.reproduce.material.random_model import write_model

CONTEXT, OUTPUT_TOKENS = 128, 600
DENSE = {"experts-371m": "llama-213m"}
"""Models of experts, and the dense one whose products are as many."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A model, and how its step runs."""

    shape: str
    is_whole: bool = True

    @property
    def name(self) -> str:
        """As in the table."""
        return self.shape + ("" if self.is_whole else ", operation by operation")


class Engines:
    """An engine for each arm."""

    def __init__(self, arms: list[Arm], folder: Path, dtype: Literal["float32", "bfloat16"]) -> None:
        for shape in {arm.shape for arm in arms}:
            write_model(shape, folder / shape, TOKENIZER)
        self._engines = {arm: _engine(folder / arm.shape, dtype, arm.is_whole) for arm in arms}

    def measure(self, streams: int, arm: Arm, turn: int) -> dict[str, float]:
        """Medians over some steps of a batch of its own."""
        engine, rng = self._engines[arm], random.Random(turn)
        batch = [request(rng, tokens(engine, rng, CONTEXT), OUTPUT_TOKENS) for _ in range(streams)]
        for stream in batch:
            engine.add(stream)
        started = 0
        while started < streams:
            started += sum(output.offset == 0 for output in engine.step().outputs)
        engine.step()
        found = timed_steps(engine)
        for stream in batch:
            engine.abort(stream.key)
        run_out(engine)
        show({"round": turn, "arm": arm.name, "streams": streams, **found})
        return found


def _engine(model: Path, dtype: Literal["float32", "bfloat16"], is_whole: bool) -> EngineCore:
    config = RunnerConfig(
        model_path=model, dtype=dtype, num_threads=1, kv_pool_bytes=256 * 1024 * 1024,
        kernels=KernelSwitches(whole_step_experts=is_whole),
    )  # fmt: skip
    return EngineCore(TorchRunner.load(config), SchedulerConfig(step_time_budget_ms=100.0))


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every shape at every number of streams."""
    rows = []
    for shape in args.shapes:
        dense = [Arm(DENSE[shape])] if shape in DENSE else []
        arms = [Arm(shape), Arm(shape, is_whole=False), *dense]
        with tempfile.TemporaryDirectory() as folder:
            engines = Engines(arms, Path(folder), args.dtype)
            for streams in args.streams:
                runs = by_turns(args.rounds, arms, partial(engines.measure, streams))
                rows += [{"streams": streams, "arm": arm.name, **ratios(runs[arms[0]], runs[arm])} for arm in arms]
    lines = table(("arm", "streams", "step ms", "of one call"), [
        (row["arm"], str(row["streams"]), f"{row['step_ms']:.2f}", f"{row['of_one_call']:.2f}x") for row in rows
    ])  # fmt: skip
    return {"context": CONTEXT, "dtype": args.dtype, "rounds": args.rounds, "rows": rows, "table": lines}


def ratios(whole: list[dict[str, float]], found: list[dict[str, float]]) -> dict[str, Any]:
    """Of an arm: its step, and how many times that of the first arm it is, round by round."""
    times = [run["step_ms"] for run in found]
    ratio = statistics.median(run["step_ms"] / one["step_ms"] for one, run in zip(whole, found, strict=True))
    return {"step_ms": round(statistics.median(times), 2), "of_one_call": round(ratio, 3), "runs": found}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--shapes", choices=("experts-371m", "experts-9m"), nargs="+", default=["experts-9m", "experts-371m"]),
        flag("--dtype", choices=("float32", "bfloat16"), default="bfloat16"),
        flag("--streams", type=int, nargs="+", default=[1, 8, 32]),
        flag("--rounds", type=int, default=3),
    )
