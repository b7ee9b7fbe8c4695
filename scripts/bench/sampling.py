"""Time of the sampler per row: torch, and one C++ call for a batch, on every build that this machine runs.

    python -m scripts.bench.sampling --out benchmarks/results/sampling-2core-cpu.json

One thread, timed by its CPU clock; the arms take turns in an order that changes; figures are medians.  A step's rows
are 8 requests; each has its own noise, and where penalties are on, 1,000 tokens of prompt and an output that grows by
one token a step.  Flat logits are those of a random model; peaked ones have 30 likely tokens above a wide rest, as a
trained one has them.  ``torch`` is the sampler of commit e471a163.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from scripts.bench.harness import flag, run_bench, table
from scripts.bench.products import builds
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.sampling.native_sampler import NativeSampler
from stratos.engine.sampling.sampler import Sampler

VOCABS = (32_000, 128_256)
ROWS, PROMPT_TOKENS, WARM_STEPS, STEPS = 8, 1_000, 2, 60
PROMPT = tuple(range(2_000, 2_000 + PROMPT_TOKENS))


@dataclass(frozen=True, slots=True)
class Case:
    """Parameters of every row, and the shape of its logits."""

    params: SamplingParams
    is_peaked: bool = False


NUCLEUS = SamplingParams(top_p=0.95)
CASES = {
    "greedy": Case(SamplingParams(temperature=0.0)),
    "temperature 1, flat": Case(SamplingParams()),
    "temperature 1, peaked": Case(SamplingParams(), is_peaked=True),
    "top-p 0.95, flat": Case(NUCLEUS),
    "top-p 0.95, peaked": Case(NUCLEUS, is_peaked=True),
    "top-k 50, top-p 0.9, peaked": Case(SamplingParams(top_k=50, top_p=0.9), is_peaked=True),
    "top-k 5000, flat": Case(SamplingParams(top_k=5000)),
    "top-p 0.1, flat": Case(SamplingParams(top_p=0.1)),
    "min-p 0.05, peaked": Case(SamplingParams(min_p=0.05), is_peaked=True),
    "penalties, top-p 0.95, peaked": Case(
        SamplingParams(top_p=0.95, frequency_penalty=0.5, presence_penalty=0.2, repetition_penalty=1.1), is_peaked=True
    ),
    "bias, top-p 0.95, peaked": Case(
        SamplingParams(top_p=0.95, logit_bias=dict.fromkeys(range(100), -100.0)), is_peaked=True
    ),
    "greedy, logprobs 20, peaked": Case(SamplingParams(temperature=0.0, num_logprobs=20), is_peaked=True),
    "top-p 0.95, logprobs 20, flat": Case(SamplingParams(top_p=0.95, num_logprobs=20)),
}


def logits_of(case: Case, vocab: int) -> Tensor:
    """Logits of one step, the same in every run."""
    logits = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(1))
    if case.is_peaked:
        logits *= 3
        logits[:, 1000:1030] += torch.linspace(16, 4, 30)
    return logits


def specs_of(case: Case, step: int) -> list[SampleSpec]:
    """Rows of one step of eight requests."""
    output = tuple(i * 37 % 5_000 for i in range(200 + step)) if case.params.needs_output_ids else ()
    return [
        SampleSpec(
            key=RequestKey(f"r{row}", 0),
            choice=0,
            seed=row,
            position=PROMPT_TOKENS + step,
            params=case.params,
            prompt_ids=PROMPT,
            output_ids=output,
            num_output_tokens=step,
        )
        for row in range(ROWS)
    ]


def step_us(sampler: Sampler, case: Case, logits: Tensor, step: int) -> tuple[float, list[int]]:
    """CPU time per row of one step, and its tokens."""
    specs = specs_of(case, step)
    logits.sum()  # the head's product has just written them: they are as near to the processor for every arm
    begin = time.thread_time()
    sampled = sampler.sample(logits, specs)
    return (time.thread_time() - begin) / ROWS * 1e6, sampled.token_ids


@cache
def fastest(vocab: int) -> NativeSampler:
    """The sampler of the best build of this machine."""
    library = builds()[0]
    return NativeSampler(library, (), vocab, NativeOps(library, torch.float32))


def native_us(case: str, vocab: int) -> float:
    """Median of some steps of one case, in CPU time per row."""
    logits, steps = logits_of(CASES[case], vocab), range(WARM_STEPS + STEPS)
    found = [step_us(fastest(vocab), CASES[case], logits, step)[0] for step in steps]
    return statistics.median(found[WARM_STEPS:])


def measure_case(case: Case, vocab: int, rounds: int) -> dict[str, Any]:
    """Medians of all arms, and whether they gave the same tokens."""
    logits, libraries = logits_of(case, vocab), builds()
    samplers: dict[str, Sampler] = {
        library.isa: NativeSampler(library, (), vocab, NativeOps(library, torch.float32)) for library in libraries
    }
    before = Sampler((), vocab, torch.device("cpu"), NativeOps(libraries[0], torch.float32))
    samplers = {"torch": before, **samplers}
    arms, runs = list(samplers), {arm: list[tuple[float, list[int]]]() for arm in samplers}
    for turn in range(rounds):
        # each follows each: torch leaves the caches full of its copies
        for arm in random.Random(turn).sample(arms, len(arms)):
            runs[arm].append(step_us(samplers[arm], case, logits, turn))
    medians = {arm: statistics.median(us for us, _ in found[WARM_STEPS:]) for arm, found in runs.items()}
    tokens = [[ids for _, ids in found] for found in runs.values()]
    best = libraries[0].isa
    return {
        "us_per_row": {arm: round(us, 1) for arm, us in medians.items()},
        "ratio": round(medians[best] / medians["torch"], 3),
        "has_same_tokens": all(other == tokens[0] for other in tokens),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every case at every size of vocabulary."""
    torch.set_num_threads(1)
    found = {
        str(vocab): {name: measure_case(case, vocab, args.rounds) for name, case in CASES.items()} for vocab in VOCABS
    }
    lines = [
        (vocab, name, *(f"{us:.0f}" for us in row["us_per_row"].values()), f"{row['ratio']:.3f}")
        for vocab, cases in found.items()
        for name, row in cases.items()
    ]
    arms = next(iter(found["32000"].values()))["us_per_row"]
    return {
        "unit": "microseconds of CPU time per row",
        "rows": ROWS,
        "rounds": args.rounds,
        "vocab": found,
        "table": table(("vocabulary", "parameters", *arms, "ratio"), lines),
    }


if __name__ == "__main__":
    run_bench(__doc__, measure, flag("--rounds", type=int, default=15, help="steps of each arm; the first two warm up"))
