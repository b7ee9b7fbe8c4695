"""Compare StratosServe with another OpenAI-compatible server on this machine, interleaved: peer, ours, peer, ours.

    python -m scripts.bench.compare --model FILE.gguf --peer llama.cpp --program llama-server --out x.json
    python -m scripts.bench.compare --model FOLDER --peer vllm --program DIR/env/bin/vllm --out x.json
    python -m scripts.bench.compare --model FOLDER --peer-url http://127.0.0.1:8123/v1 --out x.json

The first two start the peer; in the third it serves the same folder already (its model's name is the folder as given to
it, or --peer-model).  Ours is started here, idle while the peer computes, and timed from the command to its URL.  Both
get the same load: random prompts, streamed greedy completions of a fixed length; each run has a seed of its own, so no
cache can answer.  ``--temperature`` and ``--top-p`` sample; ``--long`` adds eight streams at contexts of 1 K and 4 K.
Ours has one worker, as the peer has: a second one, which the autoscaler starts where --max-decode
among the arguments of `stratos up` allows it, reads the weights once more.  What counts is the ratio.  CPU time is that
of all processes of a side; a peer whose threads spin while they wait shows more than it needs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.closed_load import closed_load, closed_row
from scripts.bench.harness import flag, run_bench, show
from scripts.bench.peer_servers import running_peer
from stratos.common.errors import DependencyDown
from stratos.reproduce.load.local_platform import running_platform

LEVELS = ((1, 6, 128, 64), (8, 24, 128, 64), (32, 96, 128, 64), (1, 5, 1024, 2))
"""Streams, requests, prompt tokens, output tokens; the last is for TTFT of a long prompt."""
LONG_LEVELS = ((8, 16, 1024, 64), (8, 8, 3968, 64))
"""Decode at real contexts, for ``--long``."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two servers."""

    url: str
    key: str
    model: str
    pid: int = 0
    """Of its first process; 0 where it was not started here."""

    def cpu_s(self) -> float | None:
        """CPU time of its processes so far; ``None`` where they are not known."""
        if not self.pid:
            return None
        first = psutil.Process(self.pid)
        return sum(sum(process.cpu_times()[:2]) for process in (first, *first.children(recursive=True)))


def shortened(level: tuple[int, int, int, int], share: float) -> tuple[int, int, int, int]:
    """The level with a share of its requests."""
    streams, requests, prompt, output = level
    return streams, max(2, streams, round(requests * share)), prompt, output


def run_side(side: Side, level: tuple[int, int, int, int], args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One level on one server; every answer must have its full length."""
    sampled = {"temperature": args.temperature, "top_p": args.top_p}
    streams, requests, prompt, output = level
    begin = side.cpu_s()
    found = closed_load(
        side.url, side.key, streams, models=(side.model,), requests=requests, prompt_tokens=str(prompt),
        output_tokens=str(output), vocab_size=args.vocab_size, seed=seed,
        extra_body=json.dumps(sampled) if args.temperature else "",
    )  # fmt: skip
    if (counted := found.report.all.num_output_tokens) != requests * output:
        raise DependencyDown(f"{side.url} gave {counted} tokens instead of {requests * output}")
    load = round(os.getloadavg()[0], 1)
    end = side.cpu_s()
    took_s = None if begin is None or end is None else round(end - begin, 2)
    return {**closed_row(found, streams), "cpu_s": took_s, "load_average": load}


def summary(rows: list[dict[str, Any]], levels: list[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Ratio of medians per level: above 1 means that ours is better."""
    result = []
    for level in levels:
        runs = [row for row in rows if tuple(row["level"]) == level]
        metric = "ttft_p50_ms" if level[3] <= 2 else "output_tokens_per_s"
        ours, peer = ([run[side][metric] for run in runs] for side in ("ours", "peer"))
        ratios = [p / o if metric.endswith("_ms") else o / p for o, p in zip(ours, peer, strict=True)]
        cpu = [run["peer"]["cpu_s"] / run["ours"]["cpu_s"] for run in runs if run["peer"]["cpu_s"] is not None]
        result.append({
            "streams": level[0], "prompt_tokens": level[2], "metric": metric,
            "ours": statistics.median(ours), "peer": statistics.median(peer),
            "ratio": round(statistics.median(ratios), 2), "ratios": [round(ratio, 2) for ratio in ratios],
            "peers_cpu_of_ours": round(statistics.median(cpu), 2) if cpu else None,
        })  # fmt: skip
    return result


@contextmanager
def peer_side(args: argparse.Namespace) -> Iterator[tuple[Side, float]]:
    """The peer and the seconds until it served; 0 where it ran before."""
    if not args.peer:
        yield Side(args.peer_url, "none", args.peer_model or str(args.model)), 0.0
        return
    served: Path = args.peer_file or args.model
    more = args.peer_more.split()
    with running_peer(args.peer, args.program, served, args.peer_log, threads=args.threads, more=more) as peer:
        yield Side(peer.url, "none", peer.model, peer.pid), peer.start_s


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let the processes of a side stand still; 0 is none."""
    processes = [] if not pid else [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All levels, both servers by turns."""
    rows: list[dict[str, Any]] = []
    if args.long and args.peer == "llama.cpp":
        raise SystemExit("--long: llama-server is started with slots that are too short for it")
    levels = [shortened(level, args.share) for level in (*LEVELS, *(LONG_LEVELS if args.long else ()))]
    told = ("--model", str(args.model), "--threads", str(args.threads), "--max-decode", "1", *args.up)
    with peer_side(args) as (peer, peer_start_s), running_platform(*told) as platform:
        ours = Side(platform.url, platform.key, args.model.stem, platform.process.pid)
        sides = {"peer": peer, "ours": ours}
        first_seed = int(time.time())  # a peer that runs on may hold the prompts of an earlier comparison
        for side in sides.values():
            run_side(side, (2, 4, 128, 16), args, first_seed - 1)
        for turn, (index, level) in itertools.product(range(args.rounds), enumerate(levels)):
            seed = first_seed + 100 * turn + 10 * index
            row: dict[str, Any] = {"level": level, "round": turn}
            for offset, (name, side) in enumerate(sides.items()):
                with stopped(peer.pid if name == "ours" and args.stop_peer else 0):
                    row[name] = run_side(side, level, args, seed + offset + 1)
            rows.append(row)
            show(row)
    return {
        "peer": args.peer_name or args.peer, "peer_arguments": args.peer_more, "model": args.model.name, "up": args.up,
        "peer_stands_still_in_our_turns": args.stop_peer,
        "threads": args.threads, "temperature": args.temperature, "top_p": args.top_p,
        "start_to_url_s": round(platform.start_s, 2), "peer_start_s": round(peer_start_s, 2),
        "summary": summary(rows, levels), "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--model", type=Path, required=True, help="folder or GGUF file"),
        flag("--peer", choices=("llama.cpp", "vllm"), default="", help="started here"),
        flag("--program", type=Path, help="llama-server or vllm, for --peer"),
        flag("--peer-more", default="", help="more arguments of the peer, in one string"),
        flag("--peer-file", type=Path, help="what the peer serves, if not --model"),
        flag("--peer-log", type=Path, default=Path("/tmp/stratos-peer.log"), help="gets what the peer prints"),
        flag("--peer-url", default="", help="of a peer that runs already"),
        flag("--peer-model", default=""),
        flag("--peer-name", default="", help="name and version, for the record"),
        flag("--threads", type=int, default=2, help="of each side"),
        flag("--vocab-size", type=int, default=31000),
        flag(
            "--stop-peer",
            action="store_true",
            help="while ours computes; one that looks for work in a loop while it is idle takes a part of our cores",
        ),
        flag("--rounds", type=int, default=3),
        flag("--share", type=float, default=1.0, help="of each level's requests; each stream gets one"),
        flag("--long", action="store_true", help="also eight streams at contexts of 1 K and 4 K"),
        flag("--temperature", type=float, default=0.0, help="of both sides; 0 is greedy"),
        flag("--top-p", type=float, default=1.0, help="of both sides, beside a temperature"),
        flag("up", nargs="*", help="arguments of `stratos up`, after --"),
    )
