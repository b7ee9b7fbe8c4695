#!/usr/bin/env python3
"""Measure how long streams pause while a killed or drained decode worker comes back, with one thread or more in each.

    python -m scripts.bench.restart_gap --out benchmarks/results/restart-gap.json
    python -m scripts.bench.restart_gap --signal TERM --decode 3 --streams 24 --threads 1

In turn for each number of threads, several times over: a platform with two decode workers runs eight streams; one
worker gets SIGKILL, or SIGTERM, which drains it; until it serves again every gap between two chunks of a stream is
taken.  Victims are the streams that the worker had, bystanders the others; ``undisturbed`` is the same for the seconds
before the signal.
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

VICTIM = "decode-0"
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return "
WINDOW_S = 6.0
MOVED = "goes on elsewhere"


@dataclass(slots=True)
class Traffic:
    """Streams that follow each other in each of its places, until ``is_over``."""

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
        return max(self.gaps(request_ids, begin, end), default=0.0)

    def gaps(self, request_ids: set[str], begin: float, end: float) -> list[float]:
        """Times between two chunks of one stream that end in the window, in seconds, sorted."""
        return sorted(
            later - sooner
            for request_id in request_ids
            for sooner, later in zip(self.times[request_id], self.times[request_id][1:], strict=False)
            if begin < later <= end
        )


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


async def one_kill(platform: Platform, name: str, number: signal.Signals, num_streams: int) -> dict[str, float]:
    """Run streams, kill or drain, wait for the return."""
    traffic, data_dir = Traffic(), platform.data_dir
    headers = {"authorization": f"Bearer {platform.key}"}
    async with httpx.AsyncClient(base_url=platform.url, headers=headers, timeout=120) as client:
        tasks = [asyncio.create_task(traffic.run(client, name, place)) for place in range(num_streams)]
        while sum(len(times) >= 10 for times in traffic.times.values()) < num_streams:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        start = time.perf_counter()
        await asyncio.sleep(WINDOW_S)
        _, pid = await state_of(data_dir)
        killed = time.perf_counter()
        os.kill(pid, number)
        state, new_pid = "", pid
        while state != "serving" or new_pid == pid:
            await asyncio.sleep(0.1)
            state, new_pid = await state_of(data_dir)
        back = time.perf_counter()
        await asyncio.sleep(1.0)
        traffic.is_over = True
        await asyncio.gather(*tasks)
    running, victims = set(traffic.times), moved(data_dir) & set(traffic.times)
    gaps = traffic.gaps(victims, killed, back)
    return {
        "victims_p99_s": round(gaps[int(0.99 * (len(gaps) - 1))], 3) if gaps else 0.0,
        "undisturbed_s": round(traffic.longest_gap(running, start, killed), 3),
        "bystanders_s": round(traffic.longest_gap(running - victims, killed, back), 3),
        "victims_s": round(traffic.longest_gap(victims, killed, back), 3),
        "num_victims": len(victims),
        "back_after_s": round(back - killed, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def measure(args: argparse.Namespace, threads: int, turn: int) -> list[dict[str, float]]:
    """One platform whose workers have so many threads."""
    rows, count, number = [], str(args.decode), signal.Signals[f"SIG{args.signal}"]
    with running_platform("--decode", count, "--max-decode", count, "--threads", str(threads)) as platform:
        for kill in range(args.kills):
            rows.append(asyncio.run(one_kill(platform, f"t{threads}-{turn}-{kill}", number, args.streams)))
            show({"threads": threads, **rows[-1]})
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Median and worst of each column."""
    columns = ("victims_p99_s", "undisturbed_s", "bystanders_s", "victims_s", "back_after_s")
    return {name: {"median": median(r[name] for r in rows), "max": max(r[name] for r in rows)} for name in columns}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Each number of threads in turn."""
    runs = by_turns(args.turns, args.threads, lambda threads, turn: measure(args, threads, turn))
    rows = {threads: [row for of_turn in found for row in of_turn] for threads, found in runs.items()}
    arms = [{"threads": threads, **summary(found), "kills": found} for threads, found in rows.items()]
    return {"signal": args.signal, "decode": args.decode, "streams": args.streams, "arms": arms}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--threads", type=int, nargs="+", default=[1, 2]),
        flag("--signal", choices=["KILL", "TERM"], default="KILL", help="TERM drains"),
        flag("--decode", type=int, default=2, help="decode workers"),
        flag("--streams", type=int, default=8, help="at once"),
        flag("--turns", type=int, default=3),
        flag("--kills", type=int, default=3, help="per turn and value"),
    )
