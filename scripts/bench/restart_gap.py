#!/usr/bin/env python3
"""Measure how long streams pause while a killed decode worker comes back, with one thread or more in each worker.

    python -m scripts.bench.restart_gap --out benchmarks/results/restart-gap.json

In turn for each number of threads, several times over: a platform with two decode workers runs eight streams; one
worker gets SIGKILL; until it serves again every gap between two chunks of a stream is taken.  Victims are the streams
that the killed worker had, bystanders the others; ``undisturbed`` is the same for the seconds before the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from scripts.bench.harness import by_turns, flag, run_bench, show
from stratos.cli.local.running import find_platform, list_processes
from stratos.reproduce.load.local_platform import Platform, running_platform

NUM_STREAMS, VICTIM = 8, "decode-0"
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return "
WINDOW_S = 6.0
MOVED = "goes on elsewhere"


@dataclass(slots=True)
class Traffic:
    """Streams that follow each other in each of the eight places, until ``is_over``."""

    times: dict[str, list[float]] = field(default_factory=dict)
    """By request id: when its chunks came."""
    is_over: bool = False

    async def run(self, client: httpx.AsyncClient, name: str, place: int) -> None:
        """One place."""
        count = 0
        while not self.is_over:
            request_id = f"{name}-{place}-{count}"
            count += 1
            body = {
                "model": "base", "prompt": f"{PROMPT}{place}", "max_tokens": 1500, "temperature": 0,
                "stream": True, "ignore_eos": True,
            }  # fmt: skip
            times = self.times[request_id] = []
            headers = {"x-request-id": request_id}
            async with client.stream("POST", "/completions", json=body, headers=headers) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        times.append(time.perf_counter())
                    if self.is_over:
                        break

    def longest_gap(self, request_ids: set[str], begin: float, end: float) -> float:
        """Longest time between two chunks of one stream that ends in the window, in seconds."""
        gaps = [
            later - sooner
            for request_id in request_ids
            for sooner, later in zip(self.times[request_id], self.times[request_id][1:], strict=False)
            if begin < later <= end
        ]
        return max(gaps, default=0.0)


async def state_of(data_dir: str) -> tuple[str, int]:
    """State and process id of the victim."""
    views = await list_processes(find_platform(Path(data_dir)))
    view = next(view for view in views if view.name == VICTIM)
    return view.state, view.pid


def moved(data_dir: str) -> set[str]:
    """Ids of the requests that went on at another worker."""
    logs = Path(data_dir).glob("run/*/logs/gateway-*.log")
    lines = [line for log in logs for line in log.read_text().splitlines() if MOVED in line]
    return {word.strip(",:;()") for line in lines for word in line.split()}


async def one_kill(platform: Platform, name: str) -> dict[str, float]:
    """Run streams, kill, wait for the return."""
    traffic, data_dir = Traffic(), platform.data_dir
    headers = {"authorization": f"Bearer {platform.key}"}
    async with httpx.AsyncClient(base_url=platform.url, headers=headers, timeout=120) as client:
        tasks = [asyncio.create_task(traffic.run(client, name, place)) for place in range(NUM_STREAMS)]
        while sum(len(times) >= 10 for times in traffic.times.values()) < NUM_STREAMS:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        start = time.perf_counter()
        await asyncio.sleep(WINDOW_S)
        _, pid = await state_of(data_dir)
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        state, new_pid = "", pid
        while state != "serving" or new_pid == pid:
            await asyncio.sleep(0.1)
            state, new_pid = await state_of(data_dir)
        back = time.perf_counter()
        await asyncio.sleep(1.0)
        traffic.is_over = True
        await asyncio.gather(*tasks)
    running, victims = set(traffic.times), moved(data_dir) & set(traffic.times)
    return {
        "undisturbed_s": round(traffic.longest_gap(running, start, killed), 3),
        "bystanders_s": round(traffic.longest_gap(running - victims, killed, back), 3),
        "victims_s": round(traffic.longest_gap(victims, killed, back), 3),
        "num_victims": len(victims),
        "back_after_s": round(back - killed, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def measure(threads: int, num_kills: int, turn: int) -> list[dict[str, float]]:
    """One platform whose workers have so many threads."""
    rows = []
    with running_platform("--decode", "2", "--max-decode", "2", "--threads", str(threads)) as platform:
        for kill in range(num_kills):
            rows.append(asyncio.run(one_kill(platform, f"t{threads}-{turn}-{kill}")))
            show({"threads": threads, **rows[-1]})
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Median and worst of each column."""
    columns = ("undisturbed_s", "bystanders_s", "victims_s", "back_after_s")
    return {name: {"median": median(r[name] for r in rows), "max": max(r[name] for r in rows)} for name in columns}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Each number of threads in turn."""
    runs = by_turns(args.turns, args.threads, lambda threads, turn: measure(threads, args.kills, turn))
    rows = {threads: [row for of_turn in found for row in of_turn] for threads, found in runs.items()}
    return {"arms": [{"threads": threads, **summary(found), "kills": found} for threads, found in rows.items()]}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--threads", type=int, nargs="+", default=[1, 2]),
        flag("--turns", type=int, default=3),
        flag("--kills", type=int, default=3, help="per turn and value"),
    )
