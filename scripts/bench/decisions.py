#!/usr/bin/env python3
"""Measure what a placement decision costs: 100 decode and 50 prefill workers, by the CPU clock of the thread.

    python -m scripts.bench.decisions --out benchmarks/results/decisions-2core-cpu.json

Every decision filters and scores all workers for both roles and books nothing; prefix caches are full, prompts name 128
blocks, a third of which some workers have.  Also measures what the index of prefix caches takes per block.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from random import Random
from typing import Any

from scripts.bench.harness import flag, run_bench
from stratos.core.cache_changes import CacheChanges
from stratos.core.engine_load import EngineLoad
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import PlacementRequest, WorkerRef, WorkerRole
from stratos.core.rules.admission import KV_WATERMARK
from stratos.core.rules.quantile import percentile
from stratos.routing.admission import Ask
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.routing.policy.settings import NAMED, RoutingPoliciesConfig
from stratos.routing.worker_view import WorkerView

IDENTITY = KvIdentity(model_digest="m" * 64, kv_dtype="bfloat16", rope_variant="default", numerics_id="cuda")
NUM_DECODE, NUM_PREFILL = 100, 50
BLOCKS_PER_WORKER, PROMPT_BLOCKS, NUM_PREFIXES = 2000, 128, 400


def make_view(number: int, role: WorkerRole, rng: Random) -> WorkerView:
    """A worker under some load."""
    name = f"{role.value}-{number}"
    total, allocated = 20_000, rng.randint(2000, 9000)
    blocks = BlockLedger(total=total, free=total - allocated, cached=0, allocated=allocated, reserved=0, fenced=0)
    ref = WorkerRef(worker_id=name, incarnation=f"inc-{name}", address=f"{name}:50051", role=role)
    engine = EngineLoad(
        step=0,
        is_computing=False,
        blocks=blocks,
        num_waiting=0,
        num_running=(num_running := rng.randint(5, 50)),
        num_queued_tokens=rng.randint(0, 4000),
        num_free_batch_slots=64 - num_running,
        num_promised_blocks=0,
        p90_output_tokens=256,
        kv_watermark=KV_WATERMARK,
        num_free_adapter_slots=0,
    )
    status = WorkerStatus(
        ref=ref,
        engine=engine,
        identity=IDENTITY,
        max_num_seqs=64,
        resident_adapters=frozenset(f"adapter-{rng.randint(0, 40)}" for _ in range(8)),
        ttft_s=rng.uniform(0.1, 0.4),
        itl_s=rng.uniform(0.01, 0.03),
    )
    return WorkerView(ref=ref, status=status)


def fill(index: PrefixIndex, views: list[WorkerView], prefixes: list[tuple[int, ...]], rng: Random) -> float:
    """Give every worker a cache; returns bytes per block and worker."""
    tracemalloc.start()
    for view in views:
        stored = [name for prefix in rng.sample(prefixes, 16) for name in prefix]
        stored += [rng.getrandbits(64) for _ in range(BLOCKS_PER_WORKER - len(stored))]
        index.apply(view.ref.incarnation, CacheChanges(after=0, last=1, stored=tuple(stored), is_dump=True))
        del stored
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return num_bytes / len(index)


def decide(policy: str, views: list[WorkerView], index: PrefixIndex, requests: list[PlacementRequest]) -> list[float]:
    """CPU seconds of each decision."""
    policies, rng, fleet = Policies(RoutingPoliciesConfig(default=policy), index), Random(1), FleetViews(views)
    seconds = []
    for request in requests:
        began_s = time.thread_time()
        choice = choose(fleet, Ask(request=request), policies, rng)
        seconds.append(time.thread_time() - began_s)
        assert isinstance(choice, EndpointChoice)
        assert len(choice.prefill) == 2
    return seconds


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes of the index, and the distribution of decisions by policy."""
    rng = Random(0)
    views = [make_view(number, WorkerRole.DECODE, rng) for number in range(NUM_DECODE)]
    views += [make_view(number, WorkerRole.PREFILL, rng) for number in range(NUM_PREFILL)]
    prefixes = [tuple(rng.getrandbits(64) for _ in range(42)) for _ in range(NUM_PREFIXES)]
    index = PrefixIndex(1 << 20)
    results: dict[str, Any] = {"index_bytes_per_block": round(fill(index, views, prefixes, rng))}
    requests = [
        PlacementRequest(
            request_id=f"r{number}",
            model_digest=IDENTITY.model_digest,
            num_prompt_tokens=2100,
            max_output_tokens_total=256,
            block_hashes=rng.choice(prefixes) + tuple(rng.getrandbits(64) for _ in range(PROMPT_BLOCKS - 42)),
        )
        for number in range(args.decisions)
    ]
    for policy in NAMED:
        seconds = decide(policy, views, index, requests)
        results[policy] = {f"p{q}_us": round(percentile(sorted(seconds), q) * 1e6) for q in (50, 99)}
    return results


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--decisions", type=int, default=2000))
