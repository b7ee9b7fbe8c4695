"""Measure speculation: time with drafts and without, a step of each in turn, each over a runner; streams must be equal.

    python scripts/demo/widen_model.py models/base /tmp/widened --layers 22
    python -m scripts.bench.speculation --target /tmp/widened --out FILE.json

The first command makes a target whose pass costs many times the draft model's.  Loads: an edit that copies its prompt,
code of files that no model has seen, and random tokens, of which hardly any draft is right.  A figure is the median
over rounds of the ratio within a round: tokens of all streams until the first of them ends, per second of CPU time of
the engine's one thread, as the machine may be shared. The engines live through all rounds, which are of the same
requests: the first one is cold, as a suffix tree is, and ``off:1`` says how far two engines without drafts differ.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from scripts.bench.harness import MODEL, flag, run_bench, show
from scripts.demo.demo_corpus import build_corpus
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.runner.kernels import choose_kernels
from stratos.engine.runner.native_forward import make_forward
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.making import make_proposer
from stratos.engine.speculation.planner import DraftPlanner
from stratos.engine.switches import KernelSwitches
from stratos.text.tokenizer import Tokenizer

PROMPT, OUTPUT = 300, 64
LOADS = ("edit", "code", "random")


def load(folder: Path, pool_mib: int, quantization: Literal["auto", "int4"] = "auto") -> TorchRunner:
    """A runner of one thread."""
    return TorchRunner.load(
        RunnerConfig(model_path=folder, num_threads=1, kv_pool_bytes=pool_mib << 20, quantization=quantization)
    )


def on_same_weights(runner: TorchRunner, first: TorchRunner) -> TorchRunner:
    """The runner with the weights of another one of its model: where they lie in memory makes 3 % of a step."""
    library = choose_kernels(RunnerConfig(), torch.device("cpu"), torch.bfloat16).library
    runner.decoder = first.decoder
    runner.forward = make_forward(first.decoder, runner.attention, library, KernelSwitches())
    return runner


def prompts(load: str, count: int) -> list[list[int]]:
    """Prompts of the load, ``PROMPT`` tokens each; the same every time."""
    rng, tokenizer = random.Random(load), Tokenizer.load(MODEL)
    if load == "random":
        return [[rng.randrange(10, 4096) for _ in range(PROMPT)] for _ in range(count)]
    texts = sorted(build_corpus()["base"].held_out, key=len, reverse=True)[:40]
    found = []
    for text in rng.choices(texts, k=count):
        ids = tokenizer.encode_plain(text[:20_000])
        begin = rng.randrange(max(1, len(ids) - PROMPT))
        code = ids[begin : begin + PROMPT]
        # an edit repeats its text from the beginning: the model goes on copying
        found.append(code if load == "code" else [*code[: 2 * PROMPT // 3], *code[: PROMPT // 3]])
    return found


def requests(load: str, num_streams: int, temperature: float) -> list[EngineRequest]:
    """So many streams at once."""
    sampling = SamplingParams(temperature=temperature, max_tokens=OUTPUT, ignore_eos=True)
    return [
        EngineRequest(
            key=RequestKey(f"r{i}", 0),
            prompt_ids=tuple(ids),
            choices=(ChoiceState(index=0),),
            sampling=sampling,
            seed=i,
        )
        for i, ids in enumerate(prompts(load, num_streams))
    ]


@dataclass(slots=True)
class SpeculatedRun:
    """Figures of one run of an arm."""

    seconds: float = 0.0
    """CPU time, from when all streams have their first token to when one has its last; then the batch is not full."""
    num_tokens: int = 0
    """Generated in that time."""
    drafting_s: float = 0.0
    """Part of it that the planner of drafts took: what an engine pays where no draft runs."""
    streams: dict[str, list[int]] = field(default_factory=dict)
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second of CPU time."""
        return self.num_tokens / self.seconds


class PlannerClock:
    """CPU time of all planners of drafts of this process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self) -> None:
        """Time planners from now on."""
        for name in ("add", "observe"):
            setattr(DraftPlanner, name, self._timed(getattr(DraftPlanner, name)))

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            begin = time.thread_time()
            method(*arguments)
            self.seconds += time.thread_time() - begin

        return timed


PLANNERS = PlannerClock()


class Arm:
    """An engine over the runner with its own settings; it lives through all rounds, as a worker does."""

    def __init__(self, runner: TorchRunner, speculation: SpeculationConfig, draft: TorchRunner | None = None) -> None:
        """The runner is of this arm alone: two engines would write the same pages."""
        config = SchedulerConfig(speculation=speculation, step_time_budget_ms=0)
        self.proposer = make_proposer(config, runner, draft)
        self.engine = EngineCore(runner, config, proposer=self.proposer)

    def run(self, wanted: list[EngineRequest], run: SpeculatedRun) -> Iterator[None]:
        """Run the streams out, a step at a time; ``run`` has the figures at the end."""
        for request in wanted:
            self.engine.add(request)
        while len(run.streams) < len(wanted):
            self._take(run)
            yield
        run.num_drafted = run.num_accepted = run.num_steps = 0
        num_before = _num_tokens(run)
        while max(map(len, run.streams.values())) < OUTPUT:
            begin, drafting_s = time.thread_time(), PLANNERS.seconds
            self._take(run)
            run.seconds += time.thread_time() - begin
            run.drafting_s += PLANNERS.seconds - drafting_s
            yield
        run.num_tokens = _num_tokens(run) - num_before
        figures = (run.num_steps, run.num_drafted, run.num_accepted)
        while self.engine.has_work:
            self._take(run)
            yield
        run.num_steps, run.num_drafted, run.num_accepted = figures

    def _take(self, run: SpeculatedRun) -> None:
        result = self.engine.step()
        for output in result.outputs:
            run.streams.setdefault(output.key.request_id, []).extend(output.token_ids)
        run.num_steps += 1
        run.num_drafted += result.num_drafted
        run.num_accepted += result.num_accepted


def _num_tokens(run: SpeculatedRun) -> int:
    return sum(map(len, run.streams.values()))


def run_in_turn(arms: dict[str, Arm], wanted: list[EngineRequest]) -> dict[str, SpeculatedRun]:
    """A run of every arm, a step of each in turn: so all see the same machine, also one that others use."""
    runs = {name: SpeculatedRun() for name in arms}
    going = [arm.run(wanted, runs[name]) for name, arm in arms.items()]
    while going:
        going = [run for run in going if next(run, False) is None]
    return runs


def compare(arms: dict[str, Arm], load: str, num_streams: int, temperature: float, rounds: int) -> dict[str, Any]:
    """Every arm, beside the first one, which has no drafts."""
    wanted = requests(load, num_streams, temperature)
    turns = [run_in_turn(arms, wanted) for _ in range(rounds)]
    runs = {name: [turn[name] for turn in turns] for name in arms}
    base = next(iter(arms))
    row: dict[str, Any] = {"load": load, "streams": num_streams, "temperature": temperature}
    for name, found in runs.items():
        assert all(run.streams == runs[base][0].streams for run in found), f"{name} changed a stream"
        ratios = [run.rate / alone.rate for alone, run in zip(runs[base], found, strict=True)]
        last = found[-1]
        row[name] = {
            "speedup": round(statistics.median(ratios), 3),
            "all": [round(ratio, 3) for ratio in ratios],
            "step_ms": round(statistics.median(run.seconds / run.num_steps for run in found) * 1e3, 2),
            "tokens_per_step": round(last.num_tokens / last.num_steps, 3),
            "drafting_share": round(statistics.median(run.drafting_s / run.seconds for run in found), 4),
            "drafted": last.num_drafted,
            "accepted": last.num_accepted,
            "by_round": [(run.num_drafted, run.num_accepted) for run in found],
        }
        if (proposer := arms[name].proposer) is not None and proposer.is_costly:
            row[name]["draft_token_ms"] = round(proposer.token_s(num_streams) * 1e3, 3)
    show(row)
    return row


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All loads, for each number of streams."""
    PLANNERS.watch()
    draft: TorchRunner | None = None
    first = load(args.target, args.pool_mib)
    arms = {"off": Arm(first, SpeculationConfig(method="off"))}
    for name in args.methods.split(","):
        method, _, count = name.partition(":")
        if count:  # "draft:4" runs all of 4 drafted tokens, whether that pays or not
            speculation = SpeculationConfig(method=method, num_speculative_tokens=int(count), is_adaptive=False)
        else:
            speculation = SpeculationConfig(method=method)
        if method == "self":
            draft = load(args.target, args.pool_mib, "int4")
        elif method == "draft":
            draft = load(args.draft, args.pool_mib)
        arms[name] = Arm(on_same_weights(load(args.target, args.pool_mib), first), speculation, draft)
    rows = [
        compare(arms, load, num_streams, temperature, args.rounds)
        for num_streams in map(int, args.streams.split(","))
        for load in args.loads.split(",")
        for temperature in map(float, args.temperatures.split(","))
    ]
    return {"target": args.target.name, "numerics": arms["off"].engine.info.identity.numerics_id, "prompt": PROMPT,
            "output": OUTPUT, "rounds": args.rounds, "rows": rows}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--target", type=Path, default=MODEL, help="folder of the target"),
        flag("--draft", type=Path, default=MODEL.parent / "draft", help="folder of the draft model"),
        flag(
            "--methods",
            default="ngram,suffix,draft,self",
            help="compared with none; draft:4 runs 4 tokens, paying or not",
        ),
        flag("--temperatures", default="0,1", help="of the streams"),
        flag("--streams", default="1,8,32", help="streams at once"),
        flag("--loads", default=",".join(LOADS), help="edit, code, random"),
        flag("--rounds", type=int, default=3, help="rounds, each of every arm"),
        flag("--pool-mib", type=int, default=512, help="KV pool"),
    )
