#!/usr/bin/env python3
"""Measure what a hand-off of KV takes between two workers, by where their engines run and by transport.

    python -m scripts.bench.handoff --out benchmarks/results/handoff-2core-cpu.json
    python -m scripts.bench.handoff --root ../before --root .      # two checkouts by turns

A prefill and a decode worker serve the shipped model in processes of their own.  The prefill worker has the prompt in
its prefix cache, the decode worker keeps none, so a request is one hand-off of all its KV (6 KiB per token, float32)
and one step.  All placements, transports and checkouts take turns in each round.  Time runs from the grant to the
commit, as the receipt has it; CPU is that of both workers and their engines, for the whole request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.harness import MODEL, ROOT, flag, run_bench
from stratos.common.tls.identity import PeerRole
from stratos.core.rules.quantile import percentile
from stratos.reproduce.load.worker_pair import PairSession, PairWorker, session, worker

TOKEN_BYTES = 6 * 2 * 4 * 32 * 4


@dataclass(frozen=True, slots=True)
class Setup:
    """One arm of the comparison."""

    root: Path
    placement: str
    transport: str

    @property
    def label(self) -> str:
        return f"{self.root.resolve().name} {self.placement} {self.transport}"


class Pair:
    """Two workers and a session with the one that decodes."""

    def __init__(self, source: PairWorker, target: PairWorker, submits: PairSession) -> None:
        self._workers, self._source, self._session = (source, target), source.ref, submits

    async def request(self, num_tokens: int) -> dict[str, float]:
        """One hand-off; milliseconds."""
        prompt = [5 + 7 * position % 4000 for position in range(num_tokens)]
        cpu_s = sum(worker.cpu_s() for worker in self._workers)
        done = await self._session.run(prompt, (self._source,), max_tokens=1)
        cpu_s = sum(worker.cpu_s() for worker in self._workers) - cpu_s
        return {"handoff_ms": done.receipt.transfer_ns / 1e6, "request_ms": done.total_s * 1e3, "cpu_ms": cpu_s * 1e3}


@asynccontextmanager
async def _running(setup: Setup, folder: Path) -> AsyncIterator[Pair]:
    paths = [setup.root / "libs", *(path for path in (setup.root / "services").iterdir() if path.is_dir())]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in paths),
        "OMP_NUM_THREADS": "1",
    }
    async with AsyncExitStack() as stack:
        source, target = [
            await stack.enter_async_context(worker(role, folder, _settings(setup, role), model=MODEL, environ=environ))
            for role in (PeerRole.PREFILL_WORKER, PeerRole.DECODE_WORKER)
        ]
        yield Pair(source, target, await stack.enter_async_context(session(target, MODEL)))


def _settings(setup: Setup, role: PeerRole) -> dict[str, str]:
    return {
        "ENGINE_PROCESS": setup.placement,
        "RUNNER__KV_POOL_BYTES": str(64 * 2**20),
        "SCHEDULER__SWITCHES__PREFIX_CACHE": json.dumps(role is PeerRole.PREFILL_WORKER),
        "TRANSPORT__NAMES": json.dumps([setup.transport]),
        "SELF_CHECK_INTERVAL_S": "0",
    }


async def measure(
    setups: Sequence[Setup], sizes: Sequence[int], rounds: int, folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """All set-ups by turns; ticks of CPU time are 10 ms, so its mean is over all rounds."""
    runs: dict[tuple[Setup, int], list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        pairs = {
            setup: await stack.enter_async_context(_running(setup, folder))
            for setup, folder in zip(setups, folders, strict=True)
        }
        for number, size, (setup, pair) in itertools.product(range(rounds + 1), sizes, pairs.items()):
            one = await pair.request(size)
            if number:  # the first round fills the prefix cache and connects the pair
                runs.setdefault((setup, size), []).append(one)
    return [_summary(setup, size, found) for (setup, size), found in runs.items()]


def _summary(setup: Setup, size: int, found: list[dict[str, float]]) -> dict[str, Any]:
    times = [run["handoff_ms"] for run in found]
    return {
        "setup": setup.label,
        "tokens": size,
        "mib": round((size - 1) * TOKEN_BYTES / 2**20, 1),
        "rounds": len(found),
        "handoff_ms_p50": round(statistics.median(times), 2),
        "handoff_ms_p90": round(percentile(sorted(times), 90), 2),
        "request_ms_p50": round(statistics.median(run["request_ms"] for run in found), 2),
        "cpu_ms_mean": round(statistics.fmean(run["cpu_ms"] for run in found), 2),
    }


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All set-ups by turns."""
    placements, transports = args.placements.split(","), args.transports.split(",")
    setups = [Setup(*one) for one in itertools.product(args.root or [ROOT], placements, transports)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sizes = [int(size) for size in args.sizes.split(",")]
        folders = [Path(folder, str(number)) for number in range(len(setups))]
        for one in folders:
            one.mkdir(mode=0o700)
        return {"results": asyncio.run(measure(setups, sizes, args.rounds, folders))}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--root", type=Path, action="append", help="checkout to measure; again for another one"),
        flag("--placements", default="thread,process"),
        flag("--transports", default="shm,gloo"),
        flag("--sizes", default="1025,4033", help="prompt tokens"),
        flag("--rounds", type=int, default=30),
    )
