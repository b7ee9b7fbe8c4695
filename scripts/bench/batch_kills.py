#!/usr/bin/env python3
"""Run a batch undisturbed, and again while processes are killed: are results equal, and is each line billed once?

    python -m scripts.bench.batch_kills --out benchmarks/results/batch-kills-2core-cpu.json

Three gateways, two routers, three workers of a fake engine and one Redis of ``stratos up``. Every few seconds one of
these processes, drawn by chance, gets SIGKILL, once all of them run again.

    python -m scripts.bench.batch_kills --lines 1000000 --kills 0 --endpoint /v1/moderations

shows how much memory a long batch takes: gateways answer moderations by themselves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson
import psutil

from scripts.bench.gateway_cost import engine_settings
from scripts.bench.harness import flag, run_bench, show, table
from scripts.bench.terms import apply_terms
from stratos.reproduce.load.local_platform import Platform, running_platform

_SIZE = ("--prefill", "0", "--decode", "3", "--gateways", "3", "--routers", "2")
_ARGUMENTS = ("--engine", "fake", *_SIZE, "--no-fork-server")
_KINDS = {
    "gateway": "stratos_gateway",
    "router": "stratos_router",
    "worker": "stratos_decode_worker",
    "redis": "valkey",
}
"""Kind of process -> a word of its command line."""
_ENDPOINTS = "/v1/completions", "/v1/moderations"
_MODERATED = {
    "policies": {"careful": {"words": {"birds": ["Blue Heron"]}}},
    "tenants": {"default": {"plan": "local", "overrides": {"content_policy": "careful"}}},
}
_ENDED = ("completed", "failed", "expired", "cancelled")
_OUTPUT_TOKENS = 8
Row = tuple[str, str, int]
"""Id, text and output tokens of a line."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One batch from its beginning to its results."""

    rows: list[Row]
    seconds: float
    peak_mib: dict[str, int]
    """Most memory of one gateway, and of Redis."""
    kills: tuple[str, ...]
    """Kinds of the processes that were killed, in order."""


class Client:
    """Asks whichever gateway lives; what is asked here may be asked again."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._base = platform.url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"authorization": f"Bearer {platform.key}", "connection": "close"}

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """An answer that is no error of the platform."""
        while True:
            try:
                answer = httpx.request(
                    method, self._base + path, headers=self._headers, timeout=60, trust_env=False, **more
                )
                if not answer.is_error:
                    return answer
                if answer.is_client_error:
                    raise RuntimeError(answer.text)
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Those that may be killed, with their kinds."""
        found = []
        for process in psutil.Process(self._platform.process.pid).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            found += [(kind, process) for kind, word in _KINDS.items() if word in line]
        return found


def upload(client: Client, num_lines: int, endpoint: str) -> str:
    """The input; its id."""
    body = {"model": "base", "max_tokens": _OUTPUT_TOKENS, "ignore_eos": True, "temperature": 1.0}
    with tempfile.TemporaryFile() as file:
        for number in range(num_lines):
            own = {**body, "prompt": [5 + number % 4000, 7], "seed": number}
            if endpoint != _ENDPOINTS[0]:
                own = {"input": f"line {number}"}
            row = {"custom_id": f"c{number}", "method": "POST", "url": endpoint, "body": own}
            file.write(orjson.dumps(row) + b"\n")
        file.seek(0)
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", file)}}
        return str(client.ask("POST", "/files", **form).json()["id"])


def run_batch(client: Client, asked: dict[str, str], num_kills: int, every_s: float, random: Random) -> BatchRun:
    """Compute it, with kills."""
    batch = client.ask("POST", "/batches", json={**asked, "completion_window": "24h"}).json()
    began_s, peak, kills = time.monotonic(), Counter[str](), list[str]()
    next_s, num_all = began_s + every_s, len(client.processes())
    while batch["status"] not in _ENDED:
        time.sleep(0.3)
        batch = client.ask("GET", f"/batches/{batch['id']}").json()
        found = client.processes()
        for kind, process in found:
            peak[kind] = max(peak[kind], _rss_mib(process))
        if len(kills) < num_kills and len(found) >= num_all and time.monotonic() > next_s:
            kind, process = random.choice(found)
            process.kill()
            kills.append(kind)
            next_s = time.monotonic() + every_s
    if batch["status"] != "completed":
        raise SystemExit(f"the batch did not complete: {batch}")
    seconds = time.monotonic() - began_s
    content = client.ask("GET", f"/files/{batch['output_file_id']}/content").content
    rows = [_row(orjson.loads(line)) for line in content.splitlines()]
    return BatchRun(rows, seconds, {kind: peak[kind] for kind in ("gateway", "redis")}, tuple(kills))


def _row(value: dict[str, Any]) -> Row:
    answer = value["response"]["body"]
    if "choices" not in answer:
        return value["custom_id"], str(answer["results"][0]["flagged"]), 0
    return value["custom_id"], answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def _rss_mib(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss >> 20)
    except psutil.Error:
        return 0


def billed(client: Client, num_requests: int) -> dict[str, int]:
    """Requests and output tokens of the ledger, once it has as many as were computed."""
    while True:
        rows = client.ask("GET", "/usage").json()["data"]
        found = {name: sum(row[name] for row in rows) for name in ("requests", "output_tokens")}
        if found["requests"] >= num_requests:
            return found
        time.sleep(0.5)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both runs, compared; without kills the undisturbed one alone."""
    is_billed = args.endpoint == _ENDPOINTS[0]
    with engine_settings(args.step_ms), running_platform(*_ARGUMENTS) as platform:
        client, random = Client(platform), Random(args.seed)
        time.sleep(2.0)  # the first tenant gets its data key
        if not is_billed:
            apply_terms(Path(platform.data_dir), _MODERATED)
        asked = {"input_file_id": upload(client, args.lines, args.endpoint), "endpoint": args.endpoint}
        runs = [run_batch(client, asked, num, args.every_s, random) for num in ([0, args.kills] if args.kills else [0])]
        num_requests = len(runs) * args.lines if is_billed else 0
        billed(client, num_requests)
        time.sleep(2.0)
        sums = billed(client, num_requests)
    expected = {"requests": num_requests, "output_tokens": num_requests * _OUTPUT_TOKENS}
    names = [row[0] for row in runs[0].rows]
    found = {
        "endpoint": args.endpoint,
        "lines": args.lines,
        "kills": dict(Counter(runs[-1].kills)),
        "are_equal": all(run.rows == runs[0].rows for run in runs) and names == [f"c{n}" for n in range(args.lines)],
        "seconds": [round(run.seconds, 1) for run in runs],
        "peak_mib": [run.peak_mib for run in runs],
        **({"billed": sums, "expected": expected} if is_billed else {}),
    }
    show(found)
    cells = [(str(args.lines), str(len(runs[-1].kills)), str(found["are_equal"]), str(sums == expected))]
    return {**found, "table": table(("lines", "kills", "equal", "billed once"), cells)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--endpoint", choices=_ENDPOINTS, default=_ENDPOINTS[0]),
        flag("--lines", type=int, default=10_000),
        flag("--kills", type=int, default=6),
        flag("--every-s", type=float, default=5.0, help="between two kills"),
        flag("--seed", type=int, default=1),
        flag("--step-ms", type=float, default=5.0, help="duration of a step of the fake engine"),
    )
