#!/usr/bin/env python3
"""Compare what a chunk and a request cost our gateway and routers of other projects: CPU time of the whole process.

    python -m scripts.bench.router_peers --out benchmarks/results/router-peers-2core-cpu.json

``sglang-router`` and ``vllm-router`` are installed from PyPI, each into an environment of its own, and forward to one
mock backend (``mock_openai``) with their own defaults.  Our gateway has no such backend: behind it are our router and a
simulated worker of the same pace, so it is measured as ``gateway_cost`` does it.  The same client sends the same bytes
to all of them, in turns.  They do not do the same: theirs choose a worker and pass bytes on; ours also checks the key,
keeps the tenant's limits, tokenises, makes text and events of token ids, keeps each stream's journal for recovery, and
bills.  CPU time is that of all threads of the process under test, as the kernel counts it; what it takes idle is taken
off.  Neither the backend nor the worker, nor our router's process, is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scripts.bench.gateway_cost import (
    PLATFORM_ARGUMENTS,
    STREAMS,
    Front,
    chunk_cost,
    engine_settings,
    gateway_pid,
    idle_ratio,
    request_cost,
)
from scripts.bench.harness import ROOT, by_turns, flag, run_bench, show, table
from scripts.bench.router_packages import PACKAGES, InstalledRouter, install
from stratos.cli.local.ports import any_free_port
from stratos.reproduce.load.local_platform import running_platform

OURS = "stratos gateway"
TEXT_BYTES = 64
"""Of a prompt: theirs take no token ids."""


Arm = Callable[[], AbstractContextManager[Front]]


@contextlib.contextmanager
def mock_backend(step_ms: float) -> Iterator[str]:
    """The backend's URL."""
    port = any_free_port()
    command = [sys.executable, "-m", "scripts.bench.mock_openai", "--port", str(port), "--step-ms", str(step_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextlib.contextmanager
def our_gateway(step_ms: float) -> Iterator[Front]:
    """A platform with everything on, and a simulated worker."""
    with engine_settings(step_ms), running_platform(*PLATFORM_ARGUMENTS) as platform:
        yield Front(platform.url, platform.key, gateway_pid(platform))


@contextlib.contextmanager
def other_router(router: InstalledRouter, step_ms: float) -> Iterator[Front]:
    """A router of another project before the mock backend."""
    with mock_backend(step_ms) as backend_url, router.running(backend_url) as (url, pid):
        yield Front(url, "none", pid)


def measure_arm(arm: Arm, args: argparse.Namespace) -> dict[str, float]:
    """Microseconds of CPU, and the part of a core that the idle process takes."""
    found = {}
    with arm() as front:
        idle = idle_ratio(front)
        found["idle, us per s"] = idle * 1e6
        for num in args.streams:
            found[f"chunk at {num}"] = asyncio.run(chunk_cost(front, num, args.chunks, idle, text_bytes=TEXT_BYTES))
            found[f"request at {num}"] = asyncio.run(
                request_cost(front, num, args.requests, idle, text_bytes=TEXT_BYTES)
            )
    return found


def installed_arms(folder: Path, step_ms: float) -> tuple[dict[str, Arm], dict[str, str], dict[str, str]]:
    """Arms by name, their versions, and why others are left out."""
    arms: dict[str, Arm] = {OURS: lambda: our_gateway(step_ms)}
    versions, left_out = {OURS: "this commit"}, {}
    for package in PACKAGES:
        try:
            router = install(package, folder)
            with other_router(router, step_ms):
                arms[package.name] = lambda router=router: other_router(router, step_ms)  # type: ignore[misc]
                versions[package.name] = router.version
        except RuntimeError as error:
            left_out[package.name] = str(error)
    show({"versions": versions, "left_out": left_out})
    return arms, versions, left_out


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and each as a multiple of the cheapest of the others."""
    args.folder.mkdir(parents=True, exist_ok=True)
    arms, versions, left_out = installed_arms(args.folder, args.step_ms)

    def measure(name: str, turn: int) -> dict[str, float]:
        found = measure_arm(arms[name], args)
        show({"round": turn, "arm": name, **{key: round(value, 1) for key, value in found.items()}})
        return found

    runs = by_turns(args.rounds, arms, measure)
    rows = {
        name: {key: round(statistics.median(run[key] for run in found), 1) for key in found[0]}
        for name, found in runs.items()
    }
    ratios = {
        name: {key: round(rows[OURS][key] / value, 2) for key, value in row.items() if not key.startswith("idle")}
        for name, row in rows.items()
        if name != OURS
    }
    cells = [(name, versions[name], *(str(value) for value in row.values())) for name, row in rows.items()]
    cells += [(f"ours / {name}", "", "", *(f"{value}x" for value in row.values())) for name, row in ratios.items()]
    return {
        "versions": versions, "left_out": left_out, "cpu_us": rows, "ours_over": ratios, "rounds": runs,
        "table": table(("process", "version", *rows[OURS]), cells),
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rounds", type=int, default=3),
        flag("--streams", type=int, nargs="+", default=list(STREAMS)),
        flag("--step-ms", type=float, default=25.0, help="duration of a step of both backends"),
        flag("--chunks", type=int, default=10_000, help="events that are measured"),
        flag("--requests", type=int, default=500, help="requests that are measured"),
        flag(
            "--folder",
            type=Path,
            default=Path(tempfile.gettempdir()) / "stratos-router-peers",
            help="where their environments are made",
        ),
    )
