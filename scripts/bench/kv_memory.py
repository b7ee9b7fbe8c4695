#!/usr/bin/env python3
"""Measure how full the KV pool runs, with the real scheduler and block manager over a fake runner and a fake clock.

    python -m scripts.bench.kv_memory --out benchmarks/results/kv-memory.json

Workload: 50 requests that all arrive at once, distinct prompts (nothing is shared), output lengths log-normal with
median 847 and cut at the context of 4096, block size 16.  A step takes 4 ms plus 20 us per token.  The median does not
say how wide the lengths spread, so three widths are measured (sigma of the logarithm), and two pools: of four and of
six contexts.  The narrower the lengths, the shorter the sequences that are held, and half a block at the end of each is
wasted; the wider, the more is free while a long sequence that was preempted waits to get back in.

Every figure is a mean over four seeds of means over time, weighted with the duration of each step, over the *backlog*:
the steps after which a request waits, from the first refusal or preemption on.  Without backlog a pool is as full as
its load, which says nothing.

    live          tokens whose KV is computed and held by a running sequence / tokens of the pool
                  (cached blocks that are not in use do not count)
    waste         (allocated blocks * block size - live tokens) / tokens of the pool: the ends of last blocks, and
                  blocks that were allocated ahead of their use
    running       sequences in the batch; ``vs_contiguous`` is its ratio to the run with slots of 4096 tokens
    recomputed    tokens computed again after preemptions / tokens computed, over the whole run

Rows differ in switches only.  "mark 1.0" admits by the blocks that are held and lets preemption correct it; the next
two count the output that admitted requests are expected to need (p90 of the lengths so far, 256 before 20 are known).
The larger pool takes all 50 under either mark for that reason, so its rows differ from contiguous slots only.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from scripts.bench.harness import run_bench, table
from stratos.common.clock import FakeClock
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.plan import PlanRow, SampledToken, SampleSpec, StepTokens
from stratos.engine.contract.results import EngineStatus
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines

CONTEXT, BLOCK_SIZE, MEDIAN_OUTPUT = 4096, 16, 847
STEP_S, TOKEN_S = 4e-3, 20e-6
SIGMAS, POOLS_TOKENS, SEEDS = (0.5, 0.7, 0.9), (16384, 24576), range(4)
ROWS: dict[str, dict[str, Any]] = {
    "mark 1.0": {"kv_watermark": 1.0, "admission_counts_budgets": False},
    "mark 1.0, budgets counted": {"kv_watermark": 1.0},
    "mark 0.90, budgets counted": {"kv_watermark": 0.90},
    "contiguous slots of 4096": {"kv_watermark": 1.0, "baseline": Baselines(kv_allocation="contiguous")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one run."""

    num_requests: int = 50
    sigma: float = 0.7
    """Standard deviation of the logarithm of the output length."""
    num_prompt_tokens: int = 128
    pool_tokens: int = 16384
    seed: int = 0

    def output_lengths(self) -> list[int]:
        """Log-normal, at least one token, cut at the context."""
        rng = random.Random(self.seed)
        lengths = (rng.lognormvariate(math.log(MEDIAN_OUTPUT), self.sigma) for _ in range(self.num_requests))
        return [max(1, min(round(length), CONTEXT - self.num_prompt_tokens)) for length in lengths]


class TimedRunner(FakeRunner):
    """Takes fake time for each step, and does not sum its pages: tokens do not matter here."""

    def __init__(self, config: FakeConfig, clock: FakeClock) -> None:
        super().__init__(config)
        self._clock = clock
        self.num_computed = 0

    def collect(self, handle: Any) -> StepTokens:
        """See ``Runner.collect``."""
        self.num_computed += handle.plan.num_tokens
        self._clock.advance(STEP_S + TOKEN_S * handle.plan.num_tokens)
        return super().collect(handle)

    def _sample_row(self, handle: Any, row: PlanRow, spec: SampleSpec) -> SampledToken:
        return SampledToken(row.seq_id, spec.position % self.config.vocab_size)


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: how long it took, and what there was after it."""

    seconds: float
    status: EngineStatus

    @property
    def is_backlogged(self) -> bool:
        """A request waits, and not only for the tokens of the first steps."""
        was_short = self.status.num_admission_refusals + self.status.num_preemptions > 0
        return was_short and self.status.num_waiting > 0


def make_requests(workload: Workload, now: float) -> list[EngineRequest]:
    """All requests, in order of arrival."""
    return [
        EngineRequest(
            key=RequestKey(f"r{index}", 0),
            prompt_ids=tuple((index * 31 + i) % 4096 for i in range(workload.num_prompt_tokens)),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=length),
            seed=0,
            terms=RequestTerms(cache_salt=b"%d" % index, arrival_s=now + index * 1e-6),
        )
        for index, length in enumerate(workload.output_lengths())
    ]


def measure(workload: Workload, switches: dict[str, Any]) -> dict[str, float]:
    """One run to the end; figures as the module says."""
    clock, num_blocks = FakeClock(), workload.pool_tokens // BLOCK_SIZE
    runner = TimedRunner(FakeConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=CONTEXT), clock)
    bounds: dict[str, Any] = {
        "max_num_seqs": workload.num_requests,
        "max_num_batched_tokens": 2048,
        "step_time_budget_ms": 0.0,
    }
    config = SchedulerConfig(**bounds, **switches)
    engine = EngineCore(runner, config, clock)
    requests = make_requests(workload, clock.now())
    for request in requests:
        engine.add(request)
    began_s, steps = clock.now(), []
    while engine.has_work:
        before_s = clock.now()
        engine.step()
        steps.append(Sample(clock.now() - before_s, engine.status()))
    return summary([step for step in steps if step.is_backlogged], workload.pool_tokens) | {
        "preemptions": engine.status().num_preemptions,
        "recomputed": round(1 - useful_tokens(requests) / runner.num_computed, 4),
        "total_s": round(clock.now() - began_s, 1),
    }


def useful_tokens(requests: list[EngineRequest]) -> int:
    """Tokens that had to be computed: every one but the last of each request."""
    return sum(len(request.prompt_ids) + request.sampling.max_tokens - 1 for request in requests)


def summary(steps: list[Sample], pool_tokens: int) -> dict[str, float]:
    """Means over the time of some steps."""
    total_s = sum(step.seconds for step in steps)

    def mean(value: Callable[[EngineStatus], float]) -> float:
        return sum(step.seconds * value(step.status) for step in steps) / total_s

    return {
        "live": round(mean(lambda s: s.num_kv_tokens) / pool_tokens, 4),
        "waste": round(mean(lambda s: s.blocks.allocated * BLOCK_SIZE - s.num_kv_tokens) / pool_tokens, 4),
        "running": round(mean(lambda s: s.num_running), 2),
        "backlog_s": round(total_s, 1),
    }


def measure_all(
    workload: Workload, seeds: Iterable[int] = SEEDS, names: Iterable[str] = tuple(ROWS)
) -> dict[str, dict[str, float]]:
    """Rows as the mean over seeds, the seed with the least live tokens, and the ratio to contiguous slots."""
    workloads = [replace(workload, seed=seed) for seed in seeds]
    rows = {name: _mean([measure(one, ROWS[name]) for one in workloads]) for name in names}
    base = rows["contiguous slots of 4096"]["running"]
    return {name: row | {"vs_contiguous": round(row["running"] / base, 2)} for name, row in rows.items()}


def _mean(runs: list[dict[str, float]]) -> dict[str, float]:
    mean = {figure: round(sum(run[figure] for run in runs) / len(runs), 4) for figure in runs[0]}
    return mean | {"least_live": min(run["live"] for run in runs)}


def table_of(results: list[dict[str, Any]]) -> str:
    """Lines for a terminal."""
    rows = []
    for result in results:
        pool, sigma = result["workload"]["pool_tokens"], result["workload"]["sigma"]
        for name, row in result["rows"].items():
            shares = (f"{row['live']:.2%}", f"{row['waste']:.2%}", f"{row['running']:.1f}")
            ratios = (f"{row['vs_contiguous']:.2f}x", f"{row['recomputed']:.1%}")
            rows.append((f"{pool}, sigma {sigma}", name, *shares, *ratios))
    return table(("pool", "switches", "live", "waste", "running", "vs", "again"), rows)


def bench(_: argparse.Namespace) -> dict[str, Any]:
    """Every pool with every width of lengths."""
    results = [
        {"workload": asdict(workload), "rows": measure_all(workload)}
        for pool_tokens in POOLS_TOKENS
        for sigma in SIGMAS
        for workload in [Workload(sigma=sigma, pool_tokens=pool_tokens)]
    ]
    return {"seeds": list(SEEDS), "results": results, "table": table_of(results)}


if __name__ == "__main__":
    run_bench(__doc__, bench)
