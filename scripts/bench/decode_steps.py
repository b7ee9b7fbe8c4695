"""Measure a decode step at real contexts, of this tree and of others, by turns.

    python -m scripts.bench.decode_steps --against ../e471a163 --out benchmarks/results/decode-steps-2core-cpu.json

``--against`` names worktrees of other commits that are set up (``make bench-compare`` does that by itself); ratios are
to the first.  Each tree has a process with one thread of its own, which runs these scripts over that tree's libraries;
one computes at a time.  A figure is CPU time of the thread per step: the machine may be shared.  Streams have random
prompts and decode greedily, or at temperature 1 with ``--top-p``.  Parts: the whole step, its forward pass, all but
that, and all but the runner.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "llama-213m"


@dataclass(frozen=True, slots=True)
class Load:
    """Streams of one length on one model."""

    model: str
    dtype: Literal["float32", "bfloat16"]
    streams: int
    context: int

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.model} {self.dtype}, {self.streams} at {self.context}"


LOADS = (
    Load("5.5M", "float32", 1, 128),
    Load("5.5M", "float32", 8, 128),
    Load("5.5M", "float32", 32, 128),
    Load("5.5M", "float32", 8, 1024),
    Load("5.5M", "float32", 32, 1024),
    Load("213M", "bfloat16", 1, 128),
    Load("213M", "bfloat16", 8, 128),
    Load("213M", "bfloat16", 32, 128),
    Load("213M", "bfloat16", 1, 1024),
    Load("213M", "bfloat16", 8, 1024),
    Load("213M", "bfloat16", 32, 1024),
    Load("213M", "bfloat16", 1, 3840),
    Load("213M", "bfloat16", 2, 3840),
    Load("213M", "bfloat16", 8, 3840),
)
STEPS, OUTPUT_TOKENS = 16, 600


class Arm:
    """The engines of one tree, in a child process."""

    def __init__(self, root: Path, folder: Path) -> None:
        python = root / ".venv" / "bin" / "python"
        command = [str(python), str(Path(__file__).resolve()), "--serve", str(folder)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{root / 'libs'}", "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=root)

    def ask(self, *words: object) -> Any:
        """Send one line, and wait for the answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the engine's process ended; its message is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def serve(folder: Path) -> None:
    """Child: answer one line per load, and per case of the sampler."""
    import stratos.engine
    from stratos.engine.core import EngineCore
    from stratos.engine.runner.torch_runner import TorchRunner
    from stratos.engine.settings import RunnerConfig, SchedulerConfig

    if not Path(stratos.engine.__file__).is_relative_to(Path.cwd()):
        raise RuntimeError(f"the libraries of {stratos.engine.__file__} would be measured, not those of {Path.cwd()}")
    engines: dict[str, EngineCore] = {}
    batch: Batch | None = None
    for line in sys.stdin:
        word, _, index = line.strip().partition(" ")
        if word == "sample":
            from scripts.bench.sampling import native_us  # an older tree may lack what its module needs

            vocab, _, case = index.partition(" ")
            print(json.dumps(native_us(case, int(vocab))), flush=True)
            continue
        if word == "open":
            place, _, top_p = index.partition(" ")
            load = LOADS[int(place)]
            if load.model not in engines:
                config = RunnerConfig(
                    model_path=folder / load.model, dtype=load.dtype, num_threads=1, kv_pool_bytes=1 << 30,
                    max_model_len=4096,
                )  # fmt: skip
                runner = TorchRunner.load(config)
                engines[load.model] = EngineCore(runner, SchedulerConfig(step_time_budget_ms=100.0))
            batch = Batch(engines[load.model], load, float(top_p) if top_p else None)
        assert batch is not None
        answer = batch.measure() if word == "measure" else None
        if word == "close":
            batch.close()
        print(json.dumps(answer), flush=True)


class Batch:
    """Streams that decode on one engine."""

    def __init__(self, engine: Any, load: Load, top_p: float | None) -> None:
        from scripts.bench import workloads

        self._workloads = workloads
        self._engine, rng = engine, random.Random(load.streams)
        length = min(OUTPUT_TOKENS, 4000 - load.context)
        prompts = [self._workloads.tokens(engine, rng, load.context) for _ in range(load.streams)]
        self._streams = [self._workloads.request(rng, prompt, length, top_p=top_p) for prompt in prompts]
        for stream in self._streams:
            engine.add(stream)
        started = 0
        while started < load.streams:
            started += sum(output.offset == 0 for output in engine.step().outputs)
        engine.step()

    def close(self) -> None:
        """Abort the streams."""
        for stream in self._streams:
            self._engine.abort(stream.key)
        self._workloads.run_out(self._engine)

    def measure(self) -> dict[str, float]:
        """Medians over some steps, in milliseconds, by part."""
        return timed_steps(self._engine)


def timed_steps(engine: Any) -> dict[str, float]:
    """Medians over ``STEPS`` steps, with clocks around the runner and its forward pass."""
    computed: list[float] = []
    names = ("launch", "sample", "collect")
    original = {name: getattr(engine.runner, name) for name in names}

    def timed(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            begin = time.thread_time()
            try:
                return original[name](*args, **options)
            finally:
                computed[-1] += time.thread_time() - begin

        return call

    forward, native = engine.runner.forward.run, []

    def timed_forward(inputs: Any) -> Any:
        begin = time.thread_time()
        result = forward(inputs)
        native.append(time.thread_time() - begin)
        return result

    for name in names:
        setattr(engine.runner, name, timed(name))
    engine.runner.forward.run = timed_forward
    steps = []
    for _ in range(STEPS):
        computed.append(0.0)
        begin = time.thread_time()
        engine.step()
        steps.append(time.thread_time() - begin)
    for name in names:
        delattr(engine.runner, name)
    del engine.runner.forward.run
    ms = 1e3
    return {
        "step_ms": ms * statistics.median(steps),
        "forward_ms": ms * statistics.median(native),
        "python_ms": ms * statistics.median(s - f for s, f in zip(steps, native, strict=True)),
        "engine_ms": ms * statistics.median(s - c for s, c in zip(steps, computed, strict=True)),
    }


@contextmanager
def running_arms(roots: Mapping[str, Path], models: Collection[str]) -> Iterator[dict[str, Arm]]:
    """A process for each tree, with these models at hand."""
    from scripts.bench.harness import MODEL
    from scripts.demo.make_random_model import TOKENIZER
    from stratos.reproduce.material.random_model import write_model

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "5.5M").symlink_to(MODEL)
        if "213M" in models:
            write_model(SHAPE, Path(folder, "213M"), TOKENIZER)
        arms = {name: Arm(root, Path(folder)) for name, root in roots.items()}
        try:
            yield arms
        finally:
            for one in arms.values():
                one.close()


def timed_load(
    arms: Mapping[str, Arm], load: Load, rounds: int, top_p: float | None = None
) -> dict[str, list[dict[str, float]]]:
    """Runs of one load, arms by turns; greedy without ``top_p``."""
    from scripts.bench.harness import by_turns

    for one in arms.values():
        one.ask("open", LOADS.index(load), *(() if top_p is None else (top_p,)))
    runs = by_turns(rounds, arms, lambda arm, _: arms[arm].ask("measure"))
    for one in arms.values():
        one.ask("close")
    return runs


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every load, arms by turns."""
    from scripts.bench.harness import show, table

    others = [path.resolve() for path in args.against or ()]
    roots = {"this": ROOT, **dict(zip(("other", "third"), others, strict=False))}
    commits = {
        arm: subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
        for arm, root in roots.items()
    }
    rows: list[dict[str, Any]] = []
    loads = [load for load in LOADS if not args.only or any(text in load.name for text in args.only)]
    with running_arms(roots, {load.model for load in loads}) as arms:
        for load in loads:
            runs = timed_load(arms, load, args.rounds, args.top_p)
            medians = {
                arm: {part: round(statistics.median(one[part] for one in found), 3) for part in found[0]}
                for arm, found in runs.items()
            }
            ratio = (
                {part: round(value / medians["other"][part], 3) for part, value in medians["this"].items()}
                if args.against
                else {}
            )
            rows.append({"load": load.name, **medians, "ratio": ratio, "runs": runs})
            show({"load": load.name, **medians, "ratio": ratio})
    lines = table(("load", "part", *roots, "ratio"), [
        (row["load"], part, *(f"{row[arm][part]:.2f}" for arm in roots), str(row["ratio"].get(part, "")))
        for row in rows for part in row["this"]
    ])  # fmt: skip
    return {
        "commits": commits,
        "rounds": args.rounds,
        "steps": STEPS,
        "top_p": args.top_p,
        "rows": rows,
        "table": lines,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
        sys.exit()
    from scripts.bench.harness import flag, run_bench

    run_bench(
        __doc__,
        bench,
        flag("--against", type=Path, nargs="+", help="worktrees of one or two other commits"),
        flag("--rounds", type=int, default=3),
        flag("--top-p", type=float, help="sample at temperature 1 with this; greedy without"),
        flag("--only", nargs="+", help="loads whose names hold one of these texts"),
    )
