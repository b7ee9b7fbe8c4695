#!/usr/bin/env python3
"""Measure what a full batch of one tenant takes from the first tokens of another one's premium requests.

    python -m scripts.bench.batch_beside --out benchmarks/results/batch-beside-2core-cpu.json
    python -m scripts.bench.batch_beside --engine torch --rate 1 --lines 400 --prompt 64

Starts ``stratos up`` with two decode workers, and sends premium requests of one token at even times, by turns alone and
beside a batch that has more lines than are computed in that time.  Their p99 beside it is divided by that alone, each
over all rounds.  Goals: at most 1.1 with simulated workers, at most 1.5 with real ones on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.bench.batch_kills import Client, upload
from scripts.bench.harness import MODEL, flag, run_bench
from scripts.bench.open_loop import Answered, OpenLoopClient
from stratos.core.rules.quantile import percentile
from stratos.reproduce.load.local_platform import Platform, running_platform

FAKE = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.02",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "8",
}
ENDPOINT = "/v1/completions"
SETTLE_S = 3.0
"""After a batch begins, and after it is cancelled."""


def key_of(platform: Platform, tenant: str, plan: str) -> str:
    """A key of a new tenant."""
    command = [str(Path(sys.executable).with_name("stratos")), "keys", "create", "--tenant", tenant, "--plan", plan]
    command += ["--data-dir", platform.data_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return re.findall(r"sk-[0-9a-f-]+", done.stdout)[0]


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of all rounds."""
    size = ("--engine", args.engine, "--prefill", "0", "--decode", "2", "--max-decode", "2")
    with running_platform(*size, env=FAKE if args.engine == "fake" else {}) as platform:
        alone, beside, num_done = asyncio.run(run_rounds(platform, args))
    figures = {name: _figures(answers) for name, answers in (("alone", alone), ("beside", beside))}
    return figures | {
        **{f"p{q}_ratio": round(figures["beside"][f"p{q}_ms"] / figures["alone"][f"p{q}_ms"], 3) for q in (50, 99)},
        "batch_lines_done": num_done,
        "engine": args.engine,
        "rounds": args.rounds,
    }


async def run_rounds(platform: Platform, args: argparse.Namespace) -> tuple[list[Answered], list[Answered], int]:
    """Answers alone and beside a batch, and how many lines were computed."""
    draw = random.Random(1)
    prompt = [draw.randrange(5, 4000) for _ in range(args.prompt)]
    body = {"model": MODEL.name, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    premium = OpenLoopClient(platform.url, key_of(platform, "premium", "premium"), body)
    batches = Client(platform)
    file_id = await asyncio.to_thread(upload, batches, args.lines, ENDPOINT)
    alone, beside, num_done = list[Answered](), list[Answered](), 0
    try:
        await premium.at_rate(args.rate, SETTLE_S)
        for _ in range(args.rounds):
            alone += await premium.at_rate(args.rate, args.seconds)
            batch_id = (await asyncio.to_thread(batches.ask, "POST", "/batches", json=_asked(file_id))).json()["id"]
            await asyncio.sleep(SETTLE_S)
            beside += await premium.at_rate(args.rate, args.seconds)
            found = (await asyncio.to_thread(batches.ask, "GET", f"/batches/{batch_id}")).json()
            if found["status"] != "in_progress":
                raise SystemExit("the batch ended before the round: give it more --lines")
            num_done += found["request_counts"]["completed"]
            await asyncio.to_thread(batches.ask, "POST", f"/batches/{batch_id}/cancel")
            await asyncio.sleep(SETTLE_S)
    finally:
        premium.close()
    return alone, beside, num_done


def _asked(file_id: str) -> dict[str, str]:
    return {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}


def _figures(answers: list[Answered]) -> dict[str, float]:
    """Of requests that were answered; from when they were due."""
    took = sorted(one.ended_s - one.due_s for one in answers if one.status == 200)
    lags = sorted(one.lag_s for one in answers)
    return {
        "requests": len(answers),
        "answered": len(took),
        **{f"p{q}_ms": round(percentile(took, q) * 1e3, 2) for q in (50, 99)},
        "client_lag_p99_ms": round(percentile(lags, 99) * 1e3, 2),
    }


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--engine", choices=("fake", "torch"), default="fake"),
        flag("--rate", type=float, default=20.0, help="premium requests a second"),
        flag("--seconds", type=float, default=15.0, help="of each part of a round"),
        flag("--rounds", type=int, default=3),
        flag("--lines", type=int, default=20_000),
        flag("--prompt", type=int, default=8, help="tokens of a premium request"),
    )
