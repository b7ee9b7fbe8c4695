#!/usr/bin/env python3
"""Measure how the platform bears three times the load that it carries, from clients that ignore Retry-After.

    python -m scripts.bench.overload --out benchmarks/results/overload-2core-cpu.json

Starts ``stratos up`` over two simulated workers, which leave the gateway a core.  A closed loop finds what they carry,
the peak.  Then requests come evenly, whatever the answers say: three times the peak, then 0.7 of it.

    during    complete answers per second while the overload lasts, divided by the peak; at least 0.9
    after     requests that are answered, of those that come later than ``--settle`` s after its end; at least 0.95
    refusals  from a request to the end of its 503; p99 at most 50 ms
    lag       how late the client sent: where it is long, the client was measured, and not the platform
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.bench.harness import MODEL, flag, run_bench
from scripts.bench.open_loop import Answered, OpenLoopClient
from stratos.core.rules.quantile import percentile
from stratos.reproduce.load.local_platform import running_platform

STEP_S, MAX_NUM_SEQS, NUM_TOKENS = 0.02, 8, 10
"""Two workers answer 2 * 8 / (10 * 0.02) = 80 requests a second at most."""
BODY = {"model": MODEL.name, "prompt": [5, 6, 7, 8], "max_tokens": NUM_TOKENS, "ignore_eos": True}
ENV = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": str(MAX_NUM_SEQS),
    "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_PER_TENANT": "1000000",  # the platform is to be full, not the tenant
    "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_BODIES_PER_TENANT": "1000000",
}
OVER, UNDER = 3.0, 0.7
REFUSED = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadSpec:
    """How long each part takes."""

    peak_s: float = 8.0
    over_s: float = 30.0
    settle_s: float = 10.0
    under_s: float = 20.0
    """Of it the requests after ``settle_s`` are judged."""
    num_open: int = 2 * MAX_NUM_SEQS
    """Requests that the workers run at once."""


async def run_overload(url: str, key: str, spec: OverloadSpec) -> dict[str, Any]:
    """The three parts against a running platform, and their figures."""
    client = OpenLoopClient(url, key, BODY)
    try:
        await client.in_turn(spec.num_open, spec.peak_s / 4)  # connections, caches
        peak = _rate(await client.in_turn(spec.num_open, spec.peak_s), spec.peak_s)
        cpu_s, began_s = time.process_time(), time.monotonic()
        over = asyncio.create_task(client.at_rate(OVER * peak, spec.over_s))
        await asyncio.sleep(spec.over_s)
        over_ends_s = time.monotonic()
        under = await client.at_rate(UNDER * peak, spec.under_s)
        cores = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        return {"peak_per_s": round(peak, 1), **_figures(await over, under, over_ends_s, peak, spec)} | {
            "client_cores": round(cores, 2)
        }
    finally:
        client.close()


def _figures(
    over: Sequence[Answered], under: Sequence[Answered], over_ends_s: float, peak: float, spec: OverloadSpec
) -> dict[str, Any]:
    judged = [one for one in under if one.due_s >= over_ends_s + spec.settle_s]
    in_time = [one for one in over if one.ended_s <= over_ends_s]
    refused = [one for one in over if one.status == REFUSED]
    return {
        "during_of_peak": round(_rate(in_time, spec.over_s) / peak, 3),
        "after_of_offered": round(sum(one.status == 200 for one in judged) / max(1, len(judged)), 3),
        "refusals": {
            "count": len(refused),
            "by_reason": dict(Counter(one.shed_reason for one in refused)),
            **_milliseconds([one.took_s for one in refused]),
        },
        "answers_during": _milliseconds([one.took_s for one in over if one.status == 200]),
        "answers_after": _milliseconds([one.took_s for one in judged if one.status == 200]),
        "lag": _milliseconds([one.lag_s for one in (*over, *under)]),
        "statuses": {str(status): count for status, count in Counter(one.status for one in (*over, *under)).items()},
    }


def _rate(answers: Sequence[Answered], seconds: float) -> float:
    return sum(one.status == 200 for one in answers) / seconds


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{q}_ms": round(percentile(sorted(seconds), q) * 1e3, 1) for q in (50, 99)} if seconds else {}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of one run."""
    spec = OverloadSpec(over_s=args.seconds, settle_s=args.settle, under_s=2 * args.settle)
    size = ("--engine", "fake", "--prefill", "0", "--decode", "2", "--max-decode", "2")
    with running_platform(*size, env=ENV) as platform:
        return asyncio.run(run_overload(platform.url, platform.key, spec))


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--seconds", type=float, default=30.0, help="of the overload"),
        flag("--settle", type=float, default=10.0, help="seconds after it that are not judged, and those that are"),
    )
