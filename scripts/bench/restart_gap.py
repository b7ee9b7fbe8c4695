#!/usr/bin/env python3
"""Measure how long streams pause while a killed or drained decode worker comes back, with one thread or more in each.

    python -m scripts.bench.restart_gap --out benchmarks/results/restart-gap.json
    python -m scripts.bench.restart_gap --signal TERM --decode 3 --streams 24 --threads 1 --kills 5 --turns 1
    python -m scripts.bench.restart_gap --decode 3 --streams 24 --threads 1 --kills 20 --turns 1 --paced-ms 50 --busy

In turn for each number of threads, several times over: a platform with two decode workers runs eight streams; one
worker gets SIGKILL, or SIGTERM, which drains it; until it serves again every gap between two chunks of a stream is
taken.  Victims are the streams that the worker had, bystanders the others; ``undisturbed`` is the same for the seconds
before the signal.  The streams are those of ``stratos chaos``, one of each feature after the other.

With few cores the streams themselves take all of them, and the gaps are waits for a core.  ``--paced-ms`` lets the fake
engine step so slowly that cores are left, so that the gaps are those of the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from scripts.bench.harness import by_turns, flag, run_bench, show
from stratos.cli.chaos.streams import bodies
from stratos.cli.local.running import find_platform, list_processes
from stratos.reproduce.load.local_platform import Platform, running_platform

NUM_TOKENS = 1500
WINDOW_S = 6.0
NICE = 10
BUSY = "while True: pass"
MOVED = "goes on elsewhere"


@dataclass(slots=True)
class Traffic:
    """Streams that follow each other in each of its places, until ``is_over``."""

    times: dict[str, list[float]] = field(default_factory=dict)
    """By request id: when its chunks came."""
    is_over: bool = False

    async def run(self, client: httpx.AsyncClient, name: str, place: int, body: dict[str, Any]) -> None:
        """One place."""
        count, path = 0, "/chat/completions" if "messages" in body else "/completions"
        while not self.is_over:
            request_id = f"{name}-{place}-{count}"
            count += 1
            times = self.times[request_id] = []
            headers = {"x-request-id": request_id}
            async with client.stream("POST", path, json=body, headers=headers) as answer:
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


async def state_of(data_dir: str, victim: str) -> tuple[str, int]:
    """State and process id of a worker."""
    views = await list_processes(find_platform(Path(data_dir)))
    view = next(view for view in views if view.name == victim)
    return view.state, view.pid


def moved(data_dir: str) -> set[str]:
    """Ids of the requests that went on at another worker."""
    logs = Path(data_dir).glob("run/*/logs/gateway-*.log")
    lines = [line for log in logs for line in log.read_text().splitlines() if MOVED in line]
    return {word.strip(",:;()") for line in lines for word in line.split()}


def renamed(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The same request with a prompt that no worker has cached, or all would go to those that were not struck last."""
    if "prompt" in body:
        return body | {"prompt": f"# {name}\n{body['prompt']}"}
    return body | {
        "messages": [{**message, "content": f"# {name}\n{message['content']}"} for message in body["messages"]]
    }


async def one_kill(
    platform: Platform, victim: str, name: str, number: signal.Signals, num_streams: int
) -> dict[str, Any]:
    """Run streams, kill or drain, wait for the return."""
    traffic, data_dir = Traffic(), platform.data_dir
    facts = find_platform(Path(data_dir))
    models = (facts.model, *facts.adapters)
    headers = {"authorization": f"Bearer {platform.key}"}
    async with httpx.AsyncClient(base_url=platform.url, headers=headers, timeout=120) as client:
        asked = bodies(models, num_streams, num_tokens=NUM_TOKENS)
        tasks = [
            asyncio.create_task(traffic.run(client, name, place, renamed(body, name)))
            for place, (_, body) in enumerate(asked)
        ]
        while sum(len(times) >= 10 for times in traffic.times.values()) < num_streams:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        start = time.perf_counter()
        await asyncio.sleep(WINDOW_S)
        _, pid = await state_of(data_dir, victim)
        killed = time.perf_counter()
        os.kill(pid, number)
        state, new_pid = "", pid
        while state != "serving" or new_pid == pid:
            await asyncio.sleep(0.1)
            state, new_pid = await state_of(data_dir, victim)
        back = time.perf_counter()
        await asyncio.sleep(1.0)
        traffic.is_over = True
        await asyncio.gather(*tasks)
    running, victims = set(traffic.times), moved(data_dir) & set(traffic.times)
    gaps = traffic.gaps(victims, killed, back)
    return {
        "victims_p99_s": round(gaps[int(0.99 * (len(gaps) - 1))], 3) if gaps else 0.0,
        "each_s": sorted(round(traffic.longest_gap({victim}, killed, back), 3) for victim in victims),
        "undisturbed_s": round(traffic.longest_gap(running, start, killed), 3),
        "bystanders_s": round(traffic.longest_gap(running - victims, killed, back), 3),
        "victims_s": round(traffic.longest_gap(victims, killed, back), 3),
        "num_victims": len(victims),
        "back_after_s": round(back - killed, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many processes of lower priority that compute without a pause."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=lambda: os.nice(NICE)) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def pace(step_ms: float) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of a platform whose workers step no faster."""
    if not step_ms:
        return (), {}
    values = {"STEP_S": step_ms / 1000, "TOKEN_S": step_ms / 1000 / 250, "NUM_BLOCKS": 4096}
    env = {f"STRATOS_{role}_WORKER_FAKE__{k}": str(v) for role in ("PREFILL", "DECODE") for k, v in values.items()}
    return ("--engine", "fake"), env


def measure(args: argparse.Namespace, threads: int, turn: int) -> list[dict[str, Any]]:
    """One platform whose workers have so many threads."""
    rows, count, number = [], str(args.decode), signal.Signals[f"SIG{args.signal}"]
    engine, env = pace(args.paced_ms)
    flags = ("--decode", count, "--max-decode", count, "--threads", str(threads), *engine)
    with running_platform(*flags, env=env) as platform, busy_loops((os.cpu_count() or 1) if args.busy else 0):
        for kill in range(args.kills):
            rows.append(
                asyncio.run(
                    one_kill(
                        platform, f"decode-{kill % args.decode}", f"t{threads}-{turn}-{kill}", number, args.streams
                    )
                )
            )
            show({"threads": threads, **rows[-1]})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst of each column, and the p99 of the victims' longest gaps over all kills."""
    each = sorted(gap for row in rows for gap in row["each_s"])
    p99 = each[round(0.99 * (len(each) - 1))] if each else 0.0
    columns = ("victims_p99_s", "undisturbed_s", "bystanders_s", "victims_s", "back_after_s")
    found = {name: {"median": median(r[name] for r in rows), "max": max(r[name] for r in rows)} for name in columns}
    return {"each_p99_s": p99, "num_moved": len(each), **found}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Each number of threads in turn."""
    runs = by_turns(args.turns, args.threads, lambda threads, turn: measure(args, threads, turn))
    rows = {threads: [row for of_turn in found for row in of_turn] for threads, found in runs.items()}
    arms = [{"threads": threads, **summary(found), "kills": found} for threads, found in rows.items()]
    asked = {name: getattr(args, name) for name in ("signal", "decode", "streams", "paced_ms", "busy")}
    return {**asked, "arms": arms}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--threads", type=int, nargs="+", default=[1, 2]),
        flag("--signal", choices=["KILL", "TERM"], default="KILL", help="TERM drains"),
        flag("--decode", type=int, default=2, help="decode workers"),
        flag("--streams", type=int, default=8, help="at once"),
        flag("--paced-ms", type=float, default=0.0, help="shortest step of the fake engine; 0: the shipped model"),
        flag("--busy", action="store_true", help=f"a busy loop per core at nice {NICE}"),
        flag("--turns", type=int, default=3),
        flag("--kills", type=int, default=3, help="per turn and value"),
    )
