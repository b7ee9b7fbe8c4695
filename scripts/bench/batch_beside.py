#!/usr/bin/env python3
"""Measure what a full batch of one tenant takes from the first tokens of another one's premium requests.

    python -m scripts.bench.batch_beside --out benchmarks/results/batch-beside-2core-cpu.json
    python -m scripts.bench.batch_beside --off ROUTER_ADMISSION__CLEAR_RATIO=0
    python -m scripts.bench.batch_beside --engine torch --rate 0.5 --lines 4000 --prompt 3900

Starts ``stratos up`` with two decode workers, and sends premium requests of one token at even times, by turns alone and
beside a batch that has more lines than are computed in that time.  Their p99 beside it is divided by that alone, each
over all rounds.  Goals: at most 1.1 with simulated workers, at most 1.5 with real ones on the same cores.

No prompt comes twice, so none is in a cache.  The plan has the class of ``premium``, and neither its promised times,
which refuse what would come late, nor a bound on prompts.  With ``--off NAME=VALUE`` a platform with that setting takes
turns with one without: what one switch brings, and what it costs in lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from scripts.bench.batch_kills import Client, upload
from scripts.bench.harness import MODEL, flag, run_bench, show, table
from scripts.bench.open_loop import Answered, OpenLoopClient
from scripts.bench.terms import apply_terms
from stratos.core.rules.quantile import percentile
from stratos.reproduce.load.local_platform import Platform, running_platform

FAKE = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.02",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "8",
}
ENDPOINT = "/v1/completions"
SETTLE_S = 3.0
"""After a batch begins, and after it is cancelled."""
_TERMS = {
    "plans": {"urgent": {"priority_class": 1, "weight": 4, "max_prompt_tokens": 131_072}},
    "tenants": {"urgent": {"plan": "urgent"}},
}
Parts = dict[str, list[Answered]]
"""Answers alone and beside a batch."""


class BesidePlatform:
    """One platform, and what was measured of it.

    Args:
        platform: with two workers.
        args: of the command line.
    """

    def __init__(self, platform: Platform, args: argparse.Namespace) -> None:
        self._args = args
        self._random = Random()
        apply_terms(Path(platform.data_dir), _TERMS)
        self._premium = OpenLoopClient(platform.url, key_of(platform, "urgent"), self._body)
        self._batches = Client(platform)
        self._file_id = upload(self._batches, args.lines, ENDPOINT)
        self.answers: Parts = {"alone": [], "beside": []}
        self.num_lines = 0
        """Of batches that were computed while premium requests came."""

    def _body(self) -> dict[str, Any]:
        """A request that no other one's prompt begins like."""
        prompt = [self._random.randrange(5, 4000) for _ in range(self._args.prompt)]
        return {"model": MODEL.name, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}

    async def warm(self) -> None:
        """Ask for the first time."""
        await self._ask(-1, "alone")
        self.answers["alone"].clear()

    async def round(self, number: int) -> None:
        """Once alone and once beside a batch."""
        await self._ask(number, "alone")
        batch_id = (await self._call("POST", "/batches", json=_asked(self._file_id))).json()["id"]
        await asyncio.sleep(SETTLE_S)
        num_before = await self._num_done(batch_id)
        await self._ask(number, "beside")
        self.num_lines += await self._num_done(batch_id) - num_before
        await self._call("POST", f"/batches/{batch_id}/cancel")
        await asyncio.sleep(SETTLE_S)

    async def _ask(self, number: int, part: str) -> None:
        self._random.seed(f"{number} {part}")
        self.answers[part] += await self._premium.at_rate(self._args.rate, self._args.seconds)

    async def _num_done(self, batch_id: str) -> int:
        found = (await self._call("GET", f"/batches/{batch_id}")).json()
        if found["status"] != "in_progress":
            raise SystemExit("the batch ended before the round: give it more --lines")
        return int(found["request_counts"]["completed"])

    async def _call(self, method: str, path: str, **more: Any) -> Any:
        return await asyncio.to_thread(self._batches.ask, method, path, **more)

    def close(self) -> None:
        """End the connections."""
        self._premium.close()

    def row(self) -> dict[str, Any]:
        """Figures of all rounds."""
        found = {part: _figures(answers) for part, answers in self.answers.items()}
        ratios = {f"p{q}_ratio": round(found["beside"][f"p{q}_ms"] / found["alone"][f"p{q}_ms"], 3) for q in (50, 99)}
        return {**found, **ratios, "batch_lines_done": self.num_lines}


def key_of(platform: Platform, tenant: str) -> str:
    """A key of a tenant."""
    command = [str(Path(sys.executable).with_name("stratos")), "keys", "create", "--tenant", tenant]
    command += ["--data-dir", platform.data_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return re.findall(r"sk-[0-9a-f-]+", done.stdout)[0]


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of all rounds."""
    size = ("--engine", args.engine, "--prefill", "0", "--decode", "2", "--max-decode", "2")
    env = FAKE if args.engine == "fake" else {}
    name, _, value = args.off.partition("=")
    changes: dict[str, dict[str, str]] = {"on": {}} | ({"off": {f"STRATOS_{name}": value}} if args.off else {})
    with contextlib.ExitStack() as stack:
        sides = {
            side: BesidePlatform(stack.enter_context(running_platform(*size, env=env | more)), args)
            for side, more in changes.items()
        }
        asyncio.run(run_rounds(sides, args.rounds))
    rows = {side: one.row() for side, one in sides.items()}
    cells = [(side, *_cells(row)) for side, row in rows.items()]
    return {
        **rows.pop("on"),
        **rows,
        "engine": args.engine,
        "rounds": args.rounds,
        "rate": args.rate,
        "seconds": args.seconds,
        "prompt": args.prompt,
        **({"off_setting": args.off} if args.off else {}),
        "table": table(("", "alone p50", "p99", "beside p50", "p99", "ratio", "lines"), cells),
    }


async def run_rounds(sides: dict[str, BesidePlatform], num_rounds: int) -> None:
    """All platforms by turns."""
    try:
        for side in sides.values():
            await side.warm()
        for number in range(num_rounds):
            for name, side in sides.items() if number % 2 else reversed(sides.items()):
                await side.round(number)
                show({name: side.row(), "load": round(os.getloadavg()[0], 1)})
    finally:
        for side in sides.values():
            side.close()


def _asked(file_id: str) -> dict[str, str]:
    return {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = [str(row[part][f"p{q}_ms"]) for part in ("alone", "beside") for q in (50, 99)]
    return *times, str(row["p99_ratio"]), str(row["batch_lines_done"])


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
        flag("--off", default="", help="a setting, as NAME=VALUE without STRATOS_, of a platform that takes turns"),
        flag("--engine", choices=("fake", "torch"), default="fake"),
        flag("--rate", type=float, default=20.0, help="premium requests a second"),
        flag("--seconds", type=float, default=15.0, help="of each part of a round"),
        flag("--rounds", type=int, default=3),
        flag("--lines", type=int, default=20_000),
        flag("--prompt", type=int, default=8, help="tokens of a premium request"),
    )
