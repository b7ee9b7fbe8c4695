#!/usr/bin/env python3
"""Send requests of one token at higher and higher rates, until one is not borne, and say what two cores do there.

    python -m scripts.bench.request_rate --out benchmarks/results/open-requests-{cpu}-2core-cpu.json

The platform is that of ``open_streams``; its simulated workers take no time for a step.  Requests come at even times,
whatever the answers are, and their times count from then.  A rate is borne if answers come at ``--least`` of it.
``outcome`` is as of ``open_streams``; a client that is late by more than 10 ms (p99) is itself the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from typing import Any

from scripts.bench.gateway_cost import PROMPT_TOKENS, engine_settings
from scripts.bench.harness import flag, run_bench, show, table
from scripts.bench.open_loop import OpenLoopClient
from scripts.bench.open_streams import ARGUMENTS, KINDS, PROFILE, cpu_by_kind, outcome, prepare, profile, settings
from stratos.cli.load.client.http_sender import OK
from stratos.reproduce.load.driving import percent_point
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.reproduce.machine import busy_and_total_s

BODY = {"model": "base", "prompt": list(range(5, 5 + PROMPT_TOKENS)), "max_tokens": 1, "ignore_eos": True}
MOST_OPEN = 4_000
"""More than a rate leaves open that is borne; one that is not is refused beyond."""
WARM_UP = (20, 3.0)
"""Requests a second, and seconds, that are not counted."""
LATE_S = 0.01
COLUMNS = ("requests/s", "", "answered/s", "p50 ms", "p99 ms", "cores", "gateways", "routers", "workers", "client")


async def warm_up(platform: Platform) -> None:
    """First requests open sessions and learn the pace of workers."""
    client = OpenLoopClient(platform.url, platform.key, BODY)
    try:
        await client.at_rate(*WARM_UP)
    finally:
        client.close()


async def rung(platform: Platform, rate: int, args: argparse.Namespace) -> dict[str, Any]:
    """One rate."""
    client = OpenLoopClient(platform.url, platform.key, BODY)
    before, began_s, (busy_before_s, _) = cpu_by_kind(platform), time.monotonic(), busy_and_total_s()
    profiled = asyncio.create_task(profile(platform, args))
    try:
        answers = await client.at_rate(rate, args.seconds)
        took_s, (busy_s, _) = time.monotonic() - began_s, busy_and_total_s()
        cores = {kind: round((now - before[kind]) / took_s, 3) for kind, now in cpu_by_kind(platform).items()}
        percent = await profiled
    finally:
        client.close()
    good = [answer for answer in answers if answer.status == OK]
    times_ms = sorted(1e3 * (answer.ended_s - answer.due_s) for answer in good) or [0.0]
    lag_s = percent_point(sorted(answer.lag_s for answer in answers), 99)
    per_s = len(good) / max(took_s, args.seconds)
    return {
        "requests_per_s": rate, "answered_per_s": round(per_s, 1), "of_due": round(per_s / rate, 3),
        **client_limit(lag_s, is_borne=per_s / rate >= args.least),
        "p50_ms": round(percent_point(times_ms, 50), 1), "p99_ms": round(percent_point(times_ms, 99), 1),
        "client_lag_p99_ms": round(1e3 * lag_s, 1), "is_client_late": lag_s > LATE_S,
        "statuses": dict(Counter(f"{answer.status} {answer.shed_reason}".strip() for answer in answers)),
        "cores": cores, "machine_cores": round((busy_s - busy_before_s) / took_s, 3),
        "load_average": round(os.getloadavg()[0], 1), "percent": percent,
    }  # fmt: skip


def client_limit(lag_s: float, *, is_borne: bool) -> dict[str, str]:
    """Why a rate is not borne that the client could not send; nothing for any other."""
    if is_borne or lag_s <= LATE_S:
        return {}
    return {"ended": f"the client was {1e3 * lag_s:.0f} ms late (p99), so it is the limit"}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Rates up to the first that is not borne."""
    prepare(args)
    rungs: list[dict[str, Any]] = []
    with engine_settings(0.0):
        os.environ |= settings(MOST_OPEN)
        with running_platform(*ARGUMENTS) as platform:
            asyncio.run(warm_up(platform))
            for rate in map(int, args.rates.split(",")):
                rungs.append(asyncio.run(rung(platform, rate, args)))
                show(rungs[-1])
                if rungs[-1]["of_due"] < args.least:
                    break
    return {
        "platform": f"stratos up {' '.join(ARGUMENTS)} (steps that take no time)", "tokens": 1,
        "outcome": outcome(rungs, args.least, "requests_per_s", "answered_per_s"), "rungs": rungs,
        "table": table(COLUMNS, map(_cells, rungs)),
    }  # fmt: skip


def _cells(one: dict[str, Any]) -> list[str]:
    values = [str(one[name]) for name in ("answered_per_s", "p50_ms", "p99_ms", "machine_cores")]
    cores = [str(one["cores"].get(kind, "")) for kind in (*KINDS.values(), "client")]
    return [str(one["requests_per_s"]), "", *values, *cores]


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rates", default="100,200,300,400,500,600,800,1000", help="requests a second, one after the other"),
        flag("--least", type=float, default=0.95, help="share of the rate with which it is borne"),
        flag("--seconds", type=int, default=20, help="for which a rate is sent"),
        PROFILE,
    )  # fmt: skip
