#!/usr/bin/env python3
"""Measure how throughput grows with simulated decode workers behind a real router and gateway: 1, 4, 8.

    python -m scripts.bench.scaling --out benchmarks/results/scaling-simulated.json

``stratos up --engine fake`` brings gateway and router; its own decode worker is stopped (SIGSTOP), so that those of
``stratos sim-worker`` serve alone.  A step of theirs lasts --step-ms whatever it holds, far longer than everything else
takes, so what is measured is whether placement keeps their batch slots filled.  There are more streams than slots, and
each is followed by the next one.  Tokens are counted for --window-s once all slots are taken, in turns over the numbers
of workers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.bench.closed_load import closed_load
from scripts.bench.harness import by_turns, flag, run_bench, show
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.running import find_platform, list_processes
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.rpc.clients.router import RouterClient

SLOTS, EXTRA, NUM_PROMPT, NUM_OUTPUT = 12, 1.25, 32, 16
SETTLE_S = 12.0
OWN_WORKER = "decode-0"


@contextmanager
def simulated(count: int, step_ms: float, data_dir: str) -> Iterator[None]:
    """That many workers, live at the router."""
    env = {
        "STRATOS_SIM_WORKER_SCHEDULER__MAX_NUM_SEQS": str(SLOTS),
        "STRATOS_SIM_WORKER_FAKE__NUM_BLOCKS": "2048",
        "STRATOS_SIM_WORKER_COSTS__PROMPT_TOKEN_S": "0",
        "STRATOS_SIM_WORKER_COSTS__SEQUENCE_S": "0",
    }
    argv = [str(Path(sys.executable).with_name("stratos")), "sim-worker", "--count", str(count)]
    argv += ["--step-ms", str(step_ms), "--data-dir", data_dir]
    with subprocess.Popen(argv, env={**os.environ, **env}, stderr=subprocess.DEVNULL) as process:
        try:
            asyncio.run(wait_live(find_platform(Path(data_dir)), count))
            yield
        finally:
            process.terminate()


async def wait_live(facts: PlatformFacts, count: int) -> None:
    """The router calls exactly so many workers live."""
    async with RouterClient(facts.router_addresses[0]) as router:
        while sum(worker.is_live for worker in (await router.fleet()).workers) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def tokens_per_s(platform: Platform, num_streams: int, window_s: float, seed: int) -> float:
    """Rate of a closed loop with so many streams, while all of them flow."""
    found = closed_load(
        platform.url, platform.key, num_streams, prompt_tokens=str(NUM_PROMPT), seed=seed, duration=SETTLE_S + window_s,
        output_tokens=f"uniform:{NUM_OUTPUT // 2},{NUM_OUTPUT * 3 // 2 - 1}",
    )  # fmt: skip
    begin_s = min(request.intended_s for request in found.result.requests) + SETTLE_S
    times = (time_s for request in found.result.requests for time_s in request.answer.token_times_s)
    return sum(begin_s <= time_s < begin_s + window_s for time_s in times) / window_s


def measure(count: int, args: argparse.Namespace, platform: Platform, turn: int) -> dict[str, Any]:
    """One number of workers, once."""
    with simulated(count, args.step_ms, platform.data_dir):
        rate = tokens_per_s(platform, round(EXTRA * SLOTS * count), args.window_s, 100 * turn + count)
    asyncio.run(wait_live(find_platform(Path(platform.data_dir)), 0))
    row = {"workers": count, "tokens_per_s": round(rate, 1), "load_average": round(os.getloadavg()[0], 1)}
    show(row)
    return row


def summary(rows: list[dict[str, Any]], step_ms: float) -> list[dict[str, Any]]:
    """Means per number of workers, as a share of linear growth and of what the slots allow."""
    found: list[dict[str, Any]] = []
    for count in sorted({row["workers"] for row in rows}):
        rates = [row["tokens_per_s"] for row in rows if row["workers"] == count]
        mean = sum(rates) / len(rates)
        single = found[0]["tokens_per_s"] if found else mean
        most = count * SLOTS * 1000 / step_ms
        found.append(
            {
                "workers": count,
                "tokens_per_s": round(mean, 1),
                "of_linear": round(mean / (count * single), 4),
                "of_slots": round(mean / most, 4),
            }
        )
    return found


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Each number of workers in turn."""
    with running_platform("--engine", "fake", "--prefill", "0", "--max-decode", "1") as platform:
        facts = find_platform(Path(platform.data_dir))
        own = next(view.pid for view in asyncio.run(list_processes(facts)) if view.name == OWN_WORKER)
        try:
            os.kill(own, signal.SIGSTOP)
            asyncio.run(wait_live(facts, 0))
            runs = by_turns(args.turns, args.workers, lambda count, turn: measure(count, args, platform, turn))
        finally:
            os.kill(own, signal.SIGCONT)
    rows = [row for found in runs.values() for row in found]
    conditions = {"step_ms": args.step_ms, "slots_per_worker": SLOTS, "streams_per_slot": EXTRA}
    return {"conditions": conditions, "scaling": summary(rows, args.step_ms), "runs": rows}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--workers", type=int, nargs="+", default=[1, 4, 8]),
        flag("--turns", type=int, default=2),
        flag("--step-ms", type=float, default=500.0),
        flag("--window-s", type=float, default=40.0),
    )
