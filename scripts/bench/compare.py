"""Compare StratosServe with another OpenAI-compatible server on this machine, interleaved: peer, ours, peer, ours.

    python -m scripts.bench.compare --model MODEL_FOLDER --peer-url http://127.0.0.1:8123/v1 --out x.json

The peer must serve the same folder already (its model's name is the folder as given to it, or --peer-model).  Ours is
started here, idle while the peer computes, and timed from the command to its URL.  Both get the same load: random
prompts, streamed greedy completions; each run has a seed of its own, so no cache can answer.  What counts is the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from scripts.bench.closed_load import closed_load, closed_row
from scripts.bench.harness import flag, run_bench, show
from stratos.reproduce.load.local_platform import running_platform

LEVELS = ((1, 6, 128, 64), (8, 24, 128, 64), (32, 96, 128, 64), (1, 5, 1024, 2))
"""Streams, requests, prompt tokens, output tokens; the last is for TTFT of a long prompt."""


def shortened(level: tuple[int, int, int, int], share: float) -> tuple[int, int, int, int]:
    """The level with a share of its requests."""
    streams, requests, prompt, output = level
    return streams, max(2, streams, round(requests * share)), prompt, output


def run_side(url: str, key: str, model: str, level: tuple[int, int, int, int], vocab_size: int, seed: int) -> Any:
    """One level on one server."""
    streams, requests, prompt, output = level
    found = closed_load(
        url, key, streams, models=(model,), requests=requests, prompt_tokens=str(prompt), output_tokens=str(output),
        vocab_size=vocab_size, seed=seed,
    )  # fmt: skip
    return closed_row(found, streams)


def summary(rows: list[dict[str, Any]], levels: list[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Ratio of medians per level: above 1 means that ours is better."""
    result = []
    for level in levels:
        runs = [row for row in rows if tuple(row["level"]) == level]
        metric = "ttft_p50_ms" if level[3] <= 2 else "output_tokens_per_s"
        ours, peer = (statistics.median(run[side][metric] for run in runs) for side in ("ours", "peer"))
        ratio = peer / ours if metric.endswith("_ms") else ours / peer
        result.append({
            "streams": level[0], "prompt_tokens": level[2], "metric": metric,
            "ours": ours, "peer": peer, "ratio": round(ratio, 2),
        })  # fmt: skip
    return result


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All levels, both servers by turns."""
    rows: list[dict[str, Any]] = []
    levels = [shortened(level, args.share) for level in LEVELS]
    with running_platform("--model", str(args.model), *args.up) as platform:
        sides = {
            "peer": (args.peer_url, "none", args.peer_model or str(args.model)),
            "ours": (platform.url, platform.key, args.model.name),
        }
        first_seed = int(time.time())  # a peer that runs on may hold the prompts of an earlier comparison
        for side in sides.values():
            run_side(*side, (2, 4, 128, 16), args.vocab_size, first_seed - 1)
        for turn, (index, level) in itertools.product(range(args.rounds), enumerate(levels)):
            seed = first_seed + 100 * turn + 10 * index
            row: dict[str, Any] = {"level": level, "round": turn}
            for offset, (name, side) in enumerate(sides.items()):
                row[name] = run_side(*side, level, args.vocab_size, seed + offset + 1)
            rows.append(row)
            show(row)
    return {
        "peer": args.peer_name, "model": args.model.name, "up": args.up,
        "start_to_url_s": round(platform.start_s, 2), "summary": summary(rows, levels), "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--model", type=Path, required=True),
        flag("--peer-url", required=True),
        flag("--peer-model", default=""),
        flag("--peer-name", default="peer", help="name and version, for the record"),
        flag("--vocab-size", type=int, default=31000),
        flag("--rounds", type=int, default=3),
        flag("--share", type=float, default=1.0, help="of each level's requests; each stream gets one"),
        flag("up", nargs="*", help="arguments of `stratos up`, after --"),
    )
