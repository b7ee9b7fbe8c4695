#!/usr/bin/env python3
"""Measure what the host tier saves: swapping a preempted sequence instead of computing it again, and loading a prefix.

    python -m scripts.bench.host_tier --out benchmarks/results/host-tier-2core-cpu.json

Two workloads over the shipped model in float32, one engine per arm, all arms in one process and in turn, so that they
see the same machine; every figure is the least of ``--rounds``, ratios are to the arm "off".  Seconds are of CPU time,
of one thread: others may use the machine.

    preemption   12 requests of 256 prompt tokens and 256 output tokens over a pool of 168 blocks of 16 tokens,
                 admitted by their prompts alone: seconds to the end of all, greedy tokens equal in all arms
    prefixes     12 prompts of 960 tokens asked for in turn, twice, over a pool that holds 3 of them: seconds of the
                 second round, with one output token each

Arms: "off" has no host tier, "measured" copies where the measured rates say that it is cheaper, "always" copies
whenever there is room, and "larger pool" has no host tier either: its KV pool has the bytes of both.  On a CPU both
pools are the same memory, so the first three measure the mechanism and the cost of a copy, not a GPU's bus; the last
one shows what that memory does where it needs no copies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from scripts.bench.harness import MODEL, by_turns, flag, run_bench
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.switches import SchedulerSwitches

BLOCK_SIZE, POOL_BLOCKS, HOST_BLOCKS = 16, 168, 1024
BLOCK_BYTES = BLOCK_SIZE * 6 * 2 * 4 * 32 * 4
"""Tokens, layers, K and V, KV heads, head_dim, float32: of the shipped model."""
ARMS = {
    "off": SchedulerSwitches(host_tier=False),
    "measured": SchedulerSwitches(),
    "always": SchedulerSwitches(swap_costs=False),
    "larger pool": SchedulerSwitches(host_tier=False),
}
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 12, 256, 256
NUM_PREFIXES, PREFIX_TOKENS = 12, 960
Round = Callable[[EngineCore, int], tuple[dict[str, float], dict[str, list[int]]]]


def make_engine(arm: str) -> EngineCore:
    """An engine of one arm; preemption is frequent, because admission looks at prompts alone."""
    switches, is_larger = ARMS[arm], arm == "larger pool"
    runner = TorchRunner.load(
        RunnerConfig(
            model_path=MODEL,
            block_size=BLOCK_SIZE,
            kv_pool_bytes=(POOL_BLOCKS + HOST_BLOCKS * is_larger) * BLOCK_BYTES,
            host_pool_bytes=0 if is_larger else HOST_BLOCKS * BLOCK_BYTES,
            num_threads=1,
        )
    )
    crowded: dict[str, Any] = {"kv_watermark": 1.0, "admission_counts_budgets": False, "default_output_tokens": 1}
    config = SchedulerConfig(step_time_budget_ms=0.0, **crowded, switches=switches)
    return EngineCore(runner, config)


def make_request(name: str, num_prompt: int, num_output: int, salt: bytes) -> EngineRequest:
    """A prompt of its own for each name, greedy."""
    start = sum(name.encode()) * 37
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(5 + (start + 13 * i) % 4000 for i in range(num_prompt)),
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True),
        seed=0,
        terms=RequestTerms(cache_salt=salt, arrival_s=time.monotonic()),
    )


def run(engine: EngineCore, requests: list[EngineRequest]) -> tuple[float, dict[str, list[int]]]:
    """Seconds of CPU time until all have ended, and their tokens."""
    began_s, tokens = time.process_time(), {}  # type: ignore[var-annotated]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step().outputs:
            tokens.setdefault(output.key.request_id, []).extend(output.token_ids)
    return time.process_time() - began_s, tokens


def preemption_round(engine: EngineCore, number: int) -> tuple[dict[str, float], dict[str, list[int]]]:
    """One burst; nothing is shared with the round before."""
    before = engine.status()
    salt = b"%d" % number
    seconds, tokens = run(
        engine, [make_request(f"r{i}", PROMPT_TOKENS, OUTPUT_TOKENS, salt) for i in range(NUM_REQUESTS)]
    )
    after = engine.status()
    return {
        "seconds": seconds,
        "preemptions": after.num_preemptions - before.num_preemptions,
        "swapped": after.host.num_swapped_out - before.host.num_swapped_out,
    }, tokens


def prefix_round(engine: EngineCore, number: int) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Every prompt once to fill the tiers, and once again, timed."""
    salt = b"prefix%d" % number
    for i in range(NUM_PREFIXES):
        run(engine, [make_request(f"p{i}", PREFIX_TOKENS, 1, salt)])
    before, seconds, tokens = engine.status(), 0.0, {}  # type: ignore[var-annotated]
    for i in range(NUM_PREFIXES):
        elapsed, got = run(engine, [make_request(f"p{i}", PREFIX_TOKENS, 1, salt)])
        seconds += elapsed
        tokens |= got
    loaded = engine.status().host.num_blocks_in - before.host.num_blocks_in
    return {"seconds": seconds, "loaded_blocks": loaded}, tokens


def measure(num_rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by workload and arm."""
    engines = {arm: make_engine(arm) for arm in ARMS}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload, one_round in (("preemption", preemption_round), ("prefixes", prefix_round)):

        def run(arm: str, number: int, one_round: Round = one_round) -> tuple[dict[str, float], dict[str, list[int]]]:
            return one_round(engines[arm], number)

        runs = by_turns(num_rounds, ARMS, run)
        tokens = {arm: [found for _, found in of_arm] for arm, of_arm in runs.items()}
        if any(found != tokens["off"] for found in tokens.values()):
            raise SystemExit(f"{workload}: the arms do not agree on the tokens")
        best = {arm: min((figures for figures, _ in of_arm), key=itemgetter("seconds")) for arm, of_arm in runs.items()}
        off_s = best["off"]["seconds"]
        for figures in best.values():
            figures["speedup"] = round(off_s / figures["seconds"], 3)
            figures["seconds"] = round(figures["seconds"], 3)
        results[workload] = best
    return results


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both workloads in every arm."""
    return {"rounds": args.rounds, "results": measure(args.rounds)}


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--rounds", type=int, default=3))
