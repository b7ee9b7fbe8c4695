#!/usr/bin/env python3
"""Run `stratos batch run` on files of many lines: memory of its driver, time of both pools, and are results equal?

    python -m scripts.bench.offline --lines 1000000 --engine echo --out benchmarks/results/offline-driver-2core-cpu.json
    python -m scripts.bench.offline --lines 4000 --engine fake --pools processes,ray --rounds 3

The engine `echo` computes nothing: what is left is checking, sorting, blocks, the pool and results.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from scripts.bench.harness import MODEL, by_turns, flag, run_bench, show, table

_CACHED = re.compile(rb',"prompt_tokens_details":\{"cached_tokens":\d+\}|"created":\d+')
_TOPICS = 100


@dataclass(frozen=True, slots=True)
class DriverRun:
    """One run from the file to its results."""

    seconds: float
    """From the first block that was computed to the last: starts of engines and of Ray are left out."""
    whole_s: float
    peak_mib: int
    digest: str
    """Digest of all result lines without times, and without what was cached."""


def write_input(path: Path, num_lines: int, max_tokens: int) -> None:
    """Lines of many topics in turn, each with a prompt of some 600 characters."""
    with path.open("wb") as file:
        for number in range(num_lines):
            text = f"You know all about topic {number % _TOPICS}. " * 18 + f"\nQuestion {number}?"
            body = {"model": "base", "prompt": text, "max_tokens": max_tokens, "ignore_eos": True, "seed": number}
            row = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(orjson.dumps(row) + b"\n")


def run_driver(args: argparse.Namespace, pool: str, file: Path, out: Path) -> DriverRun:
    """Run the driver as the command line does, and watch it."""
    asked: dict[str, Any] = {
        "file": str(file),
        "out": str(out),
        "block_lines": args.block_lines,
        "min_engines": args.engines,
        "max_engines": args.engines,
        "ray": args.ray if pool == "ray" else "",
        "engine": {"model_path": str(MODEL), "model_name": "base", "engine": args.engine, "kv_pool_bytes": 1 << 27},
    }
    command = [sys.executable, "-m", "stratos_offline", orjson.dumps(asked).decode()]
    began_s, peak_kib, first_s, last_s = time.monotonic(), 0, 0.0, 0.0
    with subprocess.Popen(command) as driver:
        while driver.poll() is None:
            peak_kib = max(peak_kib, _peak_kib(driver.pid))
            num = sum(1 for _ in out.glob("blocks-*/results/[!.]*"))
            now_s = time.monotonic()
            if num and not first_s:
                first_s = now_s
            if num:
                last_s = now_s if num == -(-args.lines // args.block_lines) and not last_s else last_s
            time.sleep(0.1)
    if driver.returncode:
        raise RuntimeError(f"the driver ended with {driver.returncode}")
    whole_s = time.monotonic() - began_s
    digest = hashlib.blake2b(digest_size=16)
    num_lines = 0
    with (out / "output.jsonl").open("rb") as results:
        for line in results:
            num_lines += 1
            digest.update(_CACHED.sub(b"", line))
    assert num_lines == args.lines, "each line is there"
    blocks_s = (last_s or began_s + whole_s) - first_s
    found = DriverRun(round(blocks_s, 2), round(whole_s, 2), peak_kib >> 10, digest.hexdigest())
    show({"pool": pool, "seconds": found.seconds, "whole_s": found.whole_s, "peak_mib": found.peak_mib})
    return found


def _peak_kib(pid: int) -> int:
    """Most memory of a process so far, as the kernel has it; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text) or re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) if found else 0


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All pools by turns."""
    pools = args.pools.split(",")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file = Path(folder) / "in.jsonl"
        write_input(file, args.lines, args.max_tokens)
        num_bytes = file.stat().st_size

        def run(pool: str, turn: int) -> DriverRun:
            return run_driver(args, pool, file, Path(folder) / f"{pool}{turn}")

        runs = by_turns(args.rounds, pools, run)
    found: dict[str, dict[str, Any]] = {
        pool: {
            "seconds": [run.seconds for run in ran],
            "whole_s": [run.whole_s for run in ran],
            "driver_peak_mib": max(run.peak_mib for run in ran),
        }
        for pool, ran in runs.items()
    }
    more = {}
    if {"processes", "ray"} <= runs.keys():
        ratios = [ray.seconds / own.seconds for own, ray in zip(runs["processes"], runs["ray"], strict=True)]
        more["ray_overhead_percent"] = round(100 * (median(ratios) - 1), 1)
    are_equal = len({run.digest for ran in runs.values() for run in ran}) == 1
    cells = [
        (pool, str(args.lines), f"{median(one['seconds'])}", f"{median(one['whole_s'])}", str(one["driver_peak_mib"]))
        for pool, one in found.items()
    ]
    return {
        "lines": args.lines,
        "input_bytes": num_bytes,
        "engine": args.engine,
        "engines": args.engines,
        "block_lines": args.block_lines,
        "are_equal": are_equal,
        "pools": found,
        **more,
        "table": table(("pool", "lines", "s of blocks", "s in all", "driver MiB"), cells),
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--lines", type=int, default=10_000),
        flag("--engine", default="echo", help="echo, fake or torch"),
        flag("--engines", type=int, default=1),
        flag("--pools", default="processes", help="processes, ray, or both with a comma between them"),
        flag("--ray", default="local", help="address of the cluster"),
        flag("--rounds", type=int, default=1),
        flag("--block-lines", type=int, default=256),
        flag("--max-tokens", type=int, default=8),
        flag("--folder", default=None, help="where input and results lie until the end"),
    )
