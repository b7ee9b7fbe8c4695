#!/usr/bin/env python3
"""Measure what the record of a stream costs the gateway: CPU time of its whole process per chunk, with and without.

    python -m scripts.bench.stream_records --out benchmarks/results/stream-records-2core-cpu.json

A platform as that of ``gateway_cost``; streams with an ``Idempotency-Key`` take turns with streams without one.  What
the idle gateway takes is taken off.  The rest of a record, its making before placement, is in no chunk.  With
``--beside`` another checkout with a ``.venv`` of its own takes turns with this one; both platforms run all the time.
With ``--off NAME=VALUE`` a platform of this checkout with that setting of its gateway does: what that part costs.

    python -m scripts.bench.stream_records --off STREAMS__ATTACH_S=0 --tokens 64
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
from pathlib import Path
from typing import Any

from scripts.bench.gateway_cost import LONG_TOKENS, arguments_of, chunk_cost, engine_settings, idle_ratio
from scripts.bench.harness import ROOT, flag, run_bench, show, table
from stratos.reproduce.load.local_platform import running_platform


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the median of the ratios within each."""
    trees = {"this": ROOT} | ({"beside": args.beside} if args.beside else {}) | ({"off": ROOT} if args.off else {})
    name, _, value = args.off.partition("=")
    changed = {"off": {f"STRATOS_GATEWAY_{name}": value}}
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    with engine_settings(args.step_ms), contextlib.ExitStack() as stack:
        platforms = {
            name: stack.enter_context(
                running_platform(*arguments_of(tree), program=tree / ".venv/bin/stratos", env=changed.get(name, {}))
            )
            for name, tree in trees.items()
        }
        idle = {name: idle_ratio(platform) for name, platform in platforms.items()}
        for number in range(args.rounds):
            for name, platform in platforms.items():
                found: dict[bool, float] = {}
                for is_recorded in (False, True) if number % 2 else (True, False):
                    key = f"bench-{os.getpid()}-{number}" if is_recorded else ""
                    cost = chunk_cost(platform, args.streams, args.chunks, idle[name], key, num_tokens=args.tokens)
                    found[is_recorded] = asyncio.run(cost)
                rounds[name].append((found[False], found[True]))
                show({name: [round(found[key], 1) for key in (False, True)], "load": round(os.getloadavg()[0], 1)})
    rows = {name: _row(pairs) for name, pairs in rounds.items()}
    cells = [(name, *(str(value) for value in row.values())) for name, row in rows.items()]
    return {
        "streams": args.streams,
        "rounds_us": {name: [[round(value, 1) for value in pair] for pair in pairs] for name, pairs in rounds.items()},
        **rows,
        "table": table(("", "us of a chunk", "recorded", "more us", "more %"), cells),
    }


def _row(pairs: list[tuple[float, float]]) -> dict[str, float]:
    plain, recorded = (round(statistics.median(pair[place] for pair in pairs), 1) for place in (0, 1))
    more_us = round(statistics.median(recorded - plain for plain, recorded in pairs), 1)
    more = round(100 * (statistics.median(recorded / plain for plain, recorded in pairs) - 1), 1)
    return {"plain_us": plain, "recorded_us": recorded, "more_us": more_us, "more_percent": more}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--beside", type=Path, help="another checkout that takes turns"),
        flag("--off", default="", help="a setting of the gateway, as NAME=VALUE, of a platform that takes turns"),
        flag("--tokens", type=int, default=LONG_TOKENS, help="of each stream; few have their beginnings count, too"),
        flag("--rounds", type=int, default=6),
        flag("--streams", type=int, default=256),
        flag("--step-ms", type=float, default=25.0, help="duration of a step of the fake engine"),
        flag("--chunks", type=int, default=40_000, help="events that are measured each time"),
    )
