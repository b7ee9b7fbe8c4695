#!/usr/bin/env python3
"""Run a batch whose lines share long beginnings, in turn and by their prefixes: what do workers find in their caches?

    python -m scripts.bench.batch_prefixes --out benchmarks/results/batch-prefixes-2core-cpu.json

The shipped model behind one decode worker, whose KV pool has room for a few of the beginnings.
"""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import dataclass
from typing import Any

import orjson

from scripts.bench.batch_kills import Client
from scripts.bench.harness import by_turns, flag, run_bench, show, table
from stratos.reproduce.load.local_platform import running_platform

_ENDPOINT = "/v1/completions"
_ARMS = ("in turn", "by prefix")


@dataclass(frozen=True, slots=True)
class PrefixRun:
    """One batch."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    texts: tuple[str, ...]


def settings(args: argparse.Namespace, arm: str) -> dict[str, str]:
    """Settings of the platform's processes."""
    return {
        "STRATOS_GATEWAY_BATCHES__PREFIX_ORDER": str(arm == "by prefix").lower(),
        "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(args.kv_mib << 20),
        "STRATOS_GATEWAY_BATCHES__POLL_S": "0.2",
    }


def upload(client: Client, args: argparse.Namespace) -> str:
    """The input; its id."""
    rows = []
    for number in range(args.lines):
        topic = number % args.topics
        prompt = [5 + (topic * 997 + place * 31) % 3000 for place in range(args.shared)] + [5 + number % 3000, 7, 9]
        body = {"model": "base", "prompt": prompt, "max_tokens": args.max_tokens, "temperature": 0, "ignore_eos": True}
        rows.append({"custom_id": f"c{number}", "method": "POST", "url": _ENDPOINT, "body": body})
    content = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", io.BytesIO(content))}}
    return str(client.ask("POST", "/files", **form).json()["id"])


def measure(args: argparse.Namespace, arm: str) -> PrefixRun:
    """One batch on a platform of its own."""
    arguments = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--threads", "2")
    with running_platform(*arguments, env=settings(args, arm)) as platform:
        client = Client(platform)
        time.sleep(2.0)  # the first tenant gets its data key
        asked = {"input_file_id": upload(client, args), "endpoint": _ENDPOINT, "completion_window": "24h"}
        began_s, batch = time.monotonic(), client.ask("POST", "/batches", json=asked).json()
        while batch["status"] != "completed":
            time.sleep(0.1)
            batch = client.ask("GET", f"/batches/{batch['id']}").json()
        seconds = time.monotonic() - began_s
        content = client.ask("GET", f"/files/{batch['output_file_id']}/content").content
    answers = [orjson.loads(line)["response"]["body"] for line in content.splitlines()]
    found = PrefixRun(
        round(seconds, 1),
        sum(answer["usage"]["prompt_tokens"] for answer in answers),
        sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers),
        tuple(answer["choices"][0]["text"] for answer in answers),
    )
    show({"arm": arm, "seconds": found.seconds, "cached": found.cached_tokens, "of": found.prompt_tokens})
    return found


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both orders by turns."""
    runs = by_turns(args.rounds, _ARMS, lambda arm, turn: measure(args, arm))
    found = {
        arm: {
            "seconds": [run.seconds for run in ran],
            "cached_tokens": [run.cached_tokens for run in ran],
            "prompt_tokens": ran[0].prompt_tokens,
        }
        for arm, ran in runs.items()
    }
    are_equal = len({run.texts for ran in runs.values() for run in ran}) == 1
    cells = [
        (arm, str(one["seconds"]), str(one["cached_tokens"]), str(one["prompt_tokens"])) for arm, one in found.items()
    ]
    conditions = {name: getattr(args, name) for name in ("lines", "topics", "shared", "max_tokens", "kv_mib")}
    return {**conditions, "are_equal": are_equal, "orders": found,
            "table": table(("order", "seconds", "cached tokens", "of"), cells)}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--lines", type=int, default=400),
        flag("--topics", type=int, default=40),
        flag("--shared", type=int, default=900, help="tokens that lines of a topic share"),
        flag("--max-tokens", type=int, default=8),
        flag("--kv-mib", type=int, default=24),
        flag("--rounds", type=int, default=2),
    )
