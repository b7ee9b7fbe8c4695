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
from pathlib import Path
from typing import Any

from scripts.bench.whole_platform import environment
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


def table(runs: list[Run]) -> str:
    """Markdown, the first policy of a trace is the measure of the others."""
    lines = [
        "| trace | policy | requests/s | ratio | hit rate | TTFT p50, ms | p99, ms | balance |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for trace in dict.fromkeys(run["trace"] for run in runs):
        of_trace = [run for run in runs if run["trace"] == trace]
        base = of_trace[0]["closed"]["requests_per_s"]
        for run in of_trace:
            closed, opened = run["closed"], run["open"]
            rate = closed["requests_per_s"]
            lines.append(
                f"| {trace} | `{run['policy']}` | {rate:.1f} | {rate / base:.2f} "
                f"| {closed['hit_ratio']:.0%} | {opened['ttft_p50_s'] * 1000:.0f} | {opened['ttft_p99_s'] * 1000:.0f} "
                f"| {opened['balance']:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--policies", nargs="+", default=list(NAMED), help="names")
    parser.add_argument("--custom", type=json.loads, default={}, help='more: {"name": {"scorers": {...}}}')
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=list(TRACES))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    custom = {name: PolicyConfig(**fields) for name, fields in args.custom.items()}
    runs, where = [], environment()  # of the code that was loaded: a run takes minutes
    for trace in args.traces:
        for policy in args.policies:
            runs.append(measure(trace, RoutingPoliciesConfig(default=policy, custom=custom), args.seed, args.workers))
            print(json.dumps(runs[-1]), flush=True)
    print(table(runs))
    if args.out:
        args.out.write_text(json.dumps({"environment": where, "workers": args.workers, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
