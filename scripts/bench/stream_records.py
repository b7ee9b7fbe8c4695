#!/usr/bin/env python3
"""Measure what the record of a stream costs the gateway: CPU time of its whole process per chunk, with and without.

    python -m scripts.bench.stream_records --out benchmarks/results/stream-records-2core-cpu.json

A platform as that of ``gateway_cost``; streams with an ``Idempotency-Key`` take turns with streams without one.  What
the idle gateway takes is taken off.  The rest of a record, its making before placement, is in no chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from typing import Any

from scripts.bench.gateway_cost import chunk_cost, engine_settings, idle_ratio
from scripts.bench.harness import flag, run_bench, show, table
from stratos.reproduce.load.local_platform import running_platform

_ARGUMENTS = ("--engine", "fake", "--prefill", "0", "--no-fork-server")


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the median of the ratios within each."""
    rounds: list[tuple[float, float]] = []
    with engine_settings(args.step_ms), running_platform(*_ARGUMENTS) as platform:
        idle = idle_ratio(platform)
        for number in range(args.rounds):
            found: dict[bool, float] = {}
            for is_recorded in (False, True) if number % 2 else (True, False):
                name = f"bench-{os.getpid()}-{number}" if is_recorded else ""
                found[is_recorded] = asyncio.run(chunk_cost(platform, args.streams, args.chunks, idle, name))
            rounds.append((found[False], found[True]))
            show({"plain_us": round(found[False], 1), "recorded_us": round(found[True], 1)})
    plain, recorded = (round(statistics.median(pair[place] for pair in rounds), 1) for place in (0, 1))
    more = round(100 * (statistics.median(recorded / plain for plain, recorded in rounds) - 1), 1)
    cells = [(str(args.streams), str(plain), str(recorded), f"{more} %")]
    return {
        "rounds_us": [[round(value, 1) for value in pair] for pair in rounds],
        "plain_us": plain,
        "recorded_us": recorded,
        "more_percent": more,
        "table": table(("streams", "us of a chunk", "recorded", "more"), cells),
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rounds", type=int, default=6),
        flag("--streams", type=int, default=256),
        flag("--step-ms", type=float, default=25.0, help="duration of a step of the fake engine"),
        flag("--chunks", type=int, default=40_000, help="events that are measured each time"),
    )
