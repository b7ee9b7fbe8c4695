"""Measure how long a stream pauses as its decode worker is killed, with a spare and without one.

    python -m scripts.bench.spares --out benchmarks/results/spares-2core-cpu.json

By turns, several times over: a platform with one decode worker, and with one spare or none, runs a stream; the worker
gets SIGKILL after some tokens.  Taken are the time from the signal to the first token of the next worker, and the
longest pause of the whole rest of the stream, in which a process starts again beside it.  A stream for which no worker
comes within ``recovery_ttl_s`` of the router (30 s) ends with an error: it is counted, and has no times.  Before the
next kill the platform is whole again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from scripts.bench.harness import by_turns, flag, run_bench, show
from stratos.cli.local.process import ProcessView
from stratos.cli.local.running import find_platform, list_processes
from stratos.reproduce.load.local_platform import Platform, running_platform

NUM_TOKENS, KILL_AT = 400, 20
PAUSE_S = 0.05
"""Tokens of one worker come closer to each other."""


async def decode_workers(platform: Platform) -> list[ProcessView]:
    """Processes of decode workers, the spare included."""
    return [view for view in await list_processes(find_platform(Path(platform.data_dir))) if view.role == "decode"]


async def wait_whole(platform: Platform, spares: int) -> int:
    """Wait until one worker serves and all spares stand by; returns its process id."""
    while True:
        workers = await decode_workers(platform)
        states = sorted(view.state for view in workers)
        if states == ["serving"] + ["standby"] * spares:
            return next(view.pid for view in workers if view.state == "serving")
        await asyncio.sleep(0.1)


async def one_kill(platform: Platform, spares: int) -> dict[str, float | None]:
    """Run a stream, and kill the worker under it; without times where the stream ends with an error."""
    pid, times = await wait_whole(platform, spares), list[float]()
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {platform.key}"}
    async with (
        httpx.AsyncClient(base_url=platform.url, headers=headers, timeout=120) as client,
        client.stream("POST", "/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if "error" in json.loads(line.removeprefix("data: ")):
                return {"next_worker_s": None, "longest_pause_s": None, "load_average": round(os.getloadavg()[0], 1)}
            times.append(time.perf_counter())
            if len(times) == KILL_AT:
                os.kill(pid, signal.SIGKILL)
    killed, gaps = times[KILL_AT - 1], list(zip(times[KILL_AT - 1 :], times[KILL_AT:], strict=False))
    return {
        "next_worker_s": round(next(later for sooner, later in gaps if later - sooner > PAUSE_S) - killed, 3),
        "longest_pause_s": round(max(later - sooner for sooner, later in gaps), 3),
        "load_average": round(os.getloadavg()[0], 1),
    }


def measure(args: argparse.Namespace, spares: int) -> list[dict[str, float | None]]:
    """One platform."""
    size = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--threads", "1", "--spares", str(spares))
    rows = []
    with running_platform(*size) as platform:
        for _ in range(args.kills):
            rows.append(asyncio.run(one_kill(platform, spares)))
            show({"spares": spares, **rows[-1]})
    return rows


def summary(rows: list[dict[str, float | None]]) -> dict[str, Any]:
    """Medians of the streams that went on, and how many ended with an error."""
    columns = ("next_worker_s", "longest_pause_s")
    medians = {name: median(value for row in rows if (value := row[name]) is not None) for name in columns}
    return {"num_failed": sum(row["next_worker_s"] is None for row in rows), "median": medians}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """With a spare and without one in turn."""
    runs = by_turns(args.turns, (1, 0), lambda spares, _: measure(args, spares))
    rows = {spares: [row for of_turn in found for row in of_turn] for spares, found in runs.items()}
    arms = [{"spares": spares, **summary(found), "kills": found} for spares, found in rows.items()]
    ratio = arms[0]["median"]["next_worker_s"] / arms[1]["median"]["next_worker_s"]
    return {"with_spare_to_without": round(ratio, 3), "arms": arms}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--turns", type=int, default=3),
        flag("--kills", type=int, default=2, help="per turn and arm; pauses before restarts grow with each"),
    )
