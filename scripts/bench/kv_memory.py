#!/usr/bin/env python3
"""Measure how full the KV pool runs, with the real scheduler and block manager under a virtual clock.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from scripts.bench.harness import run_bench, table
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.kv_pool import measure_pool
from stratos.reproduce.load.lengths import log_normal_lengths
from stratos.reproduce.load.virtual import BLOCK_SIZE, VirtualEngine
from stratos.sim.runner import StepCosts

CONTEXT, MEDIAN_OUTPUT = 4096, 847
COSTS = StepCosts(step_s=4e-3, prompt_token_s=20e-6, sequence_s=20e-6)
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
        most = CONTEXT - self.num_prompt_tokens
        return log_normal_lengths(self.num_requests, self.sigma, Random(self.seed), median=MEDIAN_OUTPUT, most=most)


def measure(workload: Workload, switches: dict[str, Any]) -> dict[str, float]:
    """One run to the end; figures as the module says."""
    scheduler = SchedulerConfig(
        max_num_seqs=workload.num_requests, max_num_batched_tokens=2048, step_time_budget_ms=0.0, **switches
    )
    config = VirtualEngine(
        num_blocks=workload.pool_tokens // BLOCK_SIZE, max_model_len=CONTEXT, scheduler=scheduler, costs=COSTS
    )
    asks = [
        LoadAsk(num_prompt_tokens=workload.num_prompt_tokens, num_output_tokens=length)
        for length in workload.output_lengths()
    ]
    use = measure_pool(config, asks, seed=workload.seed)
    return {
        "live": round(use.live, 4),
        "waste": round(use.waste, 4),
        "running": round(use.running, 2),
        "backlog_s": round(use.backlog_s, 1),
        "preemptions": use.preemptions,
        "recomputed": round(use.recomputed, 4),
        "total_s": round(use.total_s, 1),
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
