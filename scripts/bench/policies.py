#!/usr/bin/env python3
"""Compare placement policies on simulated fleets: the table of docs/routing.md.

    python -m scripts.bench.policies --out benchmarks/results/policies-simulated.json

Real engines, queues and policies under a virtual clock (``stratos.sim``), so figures do not depend on this machine.
Each policy runs two traces in two ways:

    closed   a fixed number of sessions is open at once: requests per second
    open     sessions arrive at random at a rate that every policy sustains: time to first token

Workers have 4,096 KV blocks of 16 tokens, 32 batch slots, and the speed of an 8B model in 16 bits on a 24 GB card.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from scripts.bench.harness import flag, run_bench, show, table
from stratos.routing.policy.settings import NAMED, PolicyConfig, RoutingPoliciesConfig
from stratos.sim.fleet import FleetConfig, SimFleet
from stratos.sim.report import Report
from stratos.sim.traces import TRACES

CONCURRENCY = 160
SESSIONS_PER_S = {"shared-prefix": 28.0, "mixed": 11.0}
WARM_UP = 0.15
"""Share of the requests that is not counted."""
Run = dict[str, Any]


def measure(trace: str, policies: RoutingPoliciesConfig, seed: int, num_workers: int) -> Run:
    """Both ways of one trace with one policy."""
    sessions = TRACES[trace](seed)
    began_s = time.process_time()

    def run(**load: Any) -> Report:
        config = FleetConfig(num_workers=num_workers, policies=policies, seed=seed, **load)
        return SimFleet(config, sessions).run().report(skip=WARM_UP)

    closed, opened = run(concurrency=CONCURRENCY), run(sessions_per_s=SESSIONS_PER_S[trace])
    return {
        "trace": trace,
        "policy": policies.default,
        "seed": seed,
        "closed": asdict(closed),
        "open": asdict(opened),
        "cpu_s": round(time.process_time() - began_s, 1),
    }


def table_of(runs: list[Run]) -> str:
    """Markdown; the first policy of a trace is the measure of the others."""
    titles = ("trace", "policy", "requests/s", "ratio", "hit rate", "TTFT p50, ms", "p99, ms", "balance")
    base = {run["trace"]: run["closed"]["requests_per_s"] for run in reversed(runs)}
    rows = []
    for run in runs:
        closed, opened = run["closed"], run["open"]
        rate, ttft_ms = closed["requests_per_s"], [opened[f"ttft_p{q}_s"] * 1000 for q in (50, 99)]
        rows.append((
            run["trace"], f"`{run['policy']}`", f"{rate:.1f}", f"{rate / base[run['trace']]:.2f}",
            f"{closed['hit_ratio']:.0%}", *(f"{time_ms:.0f}" for time_ms in ttft_ms), f"{opened['balance']:.2f}",
        ))  # fmt: skip
    return table(titles, rows, is_markdown=True)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every policy on every trace."""
    custom = {name: PolicyConfig(**fields) for name, fields in args.custom.items()}
    runs = []
    for trace in args.traces:
        for policy in args.policies:
            runs.append(measure(trace, RoutingPoliciesConfig(default=policy, custom=custom), args.seed, args.workers))
            show(runs[-1])
    return {"workers": args.workers, "runs": runs, "table": table_of(runs)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--policies", nargs="+", default=list(NAMED), help="names"),
        flag("--custom", type=json.loads, default={}, help='more: {"name": {"scorers": {...}}}'),
        flag("--traces", nargs="+", default=list(TRACES), choices=list(TRACES)),
        flag("--workers", type=int, default=8),
        flag("--seed", type=int, default=1),
    )
