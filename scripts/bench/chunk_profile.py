#!/usr/bin/env python3
"""Sample what a gateway does while it passes chunks on, or answers requests, and name the shares of its parts.

    python -m scripts.bench.chunk_profile --out benchmarks/results/chunk-profile-2core-cpu.json
    python -m scripts.bench.chunk_profile --tokens 1 --streams 32 --out .../request-profile-2core-cpu.json

The platform is that of ``gateway_cost``, with streams that are open all the time, or one short request after the
other.  ``py-spy`` is installed from PyPI, into an environment of its own, and samples the running process from outside.
A sample counts for the part whose code, or whose library, is innermost; C code counts for what called it.  CPU of
threads is that of the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.bench.gateway_cost import (
    LONG_TOKENS,
    PLATFORM_ARGUMENTS,
    WARM_CHUNKS,
    Load,
    Spent,
    engine_settings,
    gateway_pid,
    loop_cpu_s,
)
from scripts.bench.harness import flag, run_bench, table
from stratos.reproduce.load.local_platform import Platform, running_platform

RATE_HZ = 200
_LOOP = "stratos_gateway/__main__.py"
"""In every stack of the thread with the event loop."""
_SERVICE, _LIBS = "stratos_gateway/", "stratos/"


def sampler(folder: Path) -> Path:
    """The program, installed unless it is there."""
    program = folder / "py-spy" / "bin" / "py-spy"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "py-spy")], check=True)
        subprocess.run([str(program.with_name("pip")), "install", "-q", "py-spy"], check=True)
    return program


def part_of(stack: str) -> str:
    """The innermost part of a sampled stack, as ``gateway/streams`` or ``library grpc``."""
    for frame in reversed(stack.split(";")):
        path = frame[frame.rfind("(") + 1 :].rsplit(":", 1)[0]
        for head, name in ((_SERVICE, "gateway/"), (_LIBS, "")):
            if head in path:
                inner = path[path.rindex(head) + len(head) :].split("/")
                return name + "/".join(inner[:2] if not name else inner[:-1] or inner)
        for library in ("grpc/", "uvloop", "asyncio/", "httptools", "prometheus_client/", "tokenizers"):
            if library in path:
                return f"library {library.strip('/')}"
    return "other"


def shares(text: str) -> dict[str, float]:
    """Percent of the event loop's samples by part, those above half a percent; threads that sleep are sampled, too."""
    found = Counter[str]()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if _LOOP in stack:
            found[part_of(stack)] += int(count)
    total = sum(found.values())
    return {name: round(100 * count / total, 1) for name, count in found.most_common() if count * 200 >= total}


async def profile(platform: Platform, args: argparse.Namespace) -> dict[str, Any]:
    """Shares under a load of open streams."""
    load, pid, program = Load(platform, args.tokens), gateway_pid(platform), sampler(args.folder)
    await load.open(args.streams)
    try:
        await load.until(lambda: min(load.num_chunks) >= WARM_CHUNKS)
        began, num_before = sum(load.num_chunks), load.num_requests
        spent, loop_began_s = Spent.since_now(pid), loop_cpu_s(pid)
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            command = [
                str(program), "record", "-p", str(pid), "-d", str(args.seconds), "-r", str(RATE_HZ),
                "-f", "raw", "-o", file.name, "--nonblocking",
            ]  # fmt: skip
            process = await asyncio.create_subprocess_exec(*command, stdout=-3, stderr=-3)
            ended = asyncio.create_task(process.wait())
            await load.until(ended.done)
            num_chunks = sum(load.num_chunks) - began
            num_requests = load.num_requests - num_before
            loop_us, total_us = (loop_cpu_s(pid) - loop_began_s) * 1e6, spent.us_per(1)
            found = shares(file.read().decode())
    finally:
        await load.close()
    return {
        "streams": args.streams, "chunks": num_chunks, "chunk_us": round(total_us / num_chunks, 1),
        "requests": num_requests, "request_us": round(total_us / max(1, num_requests), 1),
        "loop_thread_us": round(loop_us / num_chunks, 1), "percent": found,
    }  # fmt: skip


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with engine_settings(args.step_ms), running_platform(*PLATFORM_ARGUMENTS) as platform:
        found = asyncio.run(profile(platform, args))
    cells = [(name, "", str(value)) for name, value in found["percent"].items()]
    return found | {"table": table(("part", "", "%"), cells)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--streams", type=int, default=256),
        flag("--tokens", type=int, default=LONG_TOKENS, help="of each request"),
        flag("--seconds", type=int, default=20),
        flag("--step-ms", type=float, default=25.0, help="duration of a step of the fake engine"),
        flag(
            "--folder",
            type=Path,
            default=Path(tempfile.gettempdir()) / "stratos-router-peers",
            help="where the sampler's environment is made",
        ),
    )
