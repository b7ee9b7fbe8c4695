"""Measure the platform on this machine: cold start to first token, TTFT, ITL, and throughput through the gateway.

    python -m scripts.bench.whole_platform --out benchmarks/results/platform.json

Starts ``stratos up`` with the shipped model, and beside it measures the engine alone (``scripts.bench.lone_engine``) in
turn with the platform (platform, engine, platform, engine), never both computing at once.  All requests are 128 random
prompt tokens in and 64 tokens out, greedy, no early end; prompts never repeat, so the prefix cache cannot help.

Settings are equal: the platform has one worker, which computes prompts itself, and the engine has that worker's
threads, bounds of a step and drafts.  ``--as-started`` gives the platform a prefill worker, as ``stratos up`` does.
Both sides' settings are in the document.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.closed_load import closed_load, closed_row
from scripts.bench.harness import MODEL, flag, run_bench, show
from scripts.bench.lone_engine import Load, LoneEngine
from stratos.cli.local.options import UpOptions
from stratos.reproduce.load.local_platform import Platform, running_platform

NUM_PROMPT, NUM_OUTPUT, VOCAB = 128, 64, 4096
CONCURRENCIES = (1, 8, 32)


def load(model: str, url: str, key: str, concurrency: int, num_requests: int, seed: int) -> dict[str, float]:
    """Closed loop of ``concurrency`` streams through the gateway."""
    found = closed_load(
        url, key, concurrency, models=(model,), requests=num_requests, prompt_tokens=str(NUM_PROMPT),
        output_tokens=str(NUM_OUTPUT), vocab_size=VOCAB, seed=seed,
    )  # fmt: skip
    return closed_row(found, concurrency)


def cold_start(model: Path, data_dir: str) -> dict[str, float]:
    """From starting the command to its URL, and to the first token of a first request."""
    with running_platform("--model", str(model), data_dir=data_dir) as platform:
        times = load(model.name, platform.url, platform.key, 1, 1, 1)
    first = platform.start_s + times["ttft_p50_ms"] / 1e3
    return {"to_url_s": round(platform.start_s, 2), "to_first_token_s": round(first, 2)}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Cold starts, then throughput, with one data directory."""
    options = UpOptions(model_path=args.model, prefill=int(args.as_started), max_decode=1, threads=args.threads)
    placed = ("--prefill", str(options.prefill), "--max-decode", "1", "--threads", str(options.threads_per_worker))
    up = ("--model", str(args.model), *placed)
    with tempfile.TemporaryDirectory() as data_dir:
        starts = [cold_start(args.model, data_dir) for _ in range(args.repeat)]
        with running_platform(*up, data_dir=data_dir) as platform:
            engine = LoneEngine(options, Path(data_dir))
            computed_by = {
                "platform": "a prefill worker" if options.prefill else "its worker",
                "engine_alone": "itself",
            }
            settings = {side: {**engine.settings, "prompts_computed_by": by} for side, by in computed_by.items()}
            show({"up": up, "settings": settings})
            rows = throughput(args.model.name, platform, engine, args.repeat)
            engine.close()
    return {
        "workload": f"{NUM_PROMPT} in / {NUM_OUTPUT} out, greedy", "up": up, "settings": settings,
        "cold_start": starts, "throughput": rows,
    }  # fmt: skip


def throughput(model: str, platform: Platform, engine: LoneEngine, repeat: int) -> list[dict[str, Any]]:
    """Rows of the platform and of the engine alone by turns."""
    rows = []
    load(model, platform.url, platform.key, 2, 4, 99)
    for concurrency, turn in itertools.product(CONCURRENCIES, range(repeat)):
        count, seed = max(6, 3 * concurrency), 1000 * concurrency + turn
        begin = cpu_s(platform)
        through = load(model, platform.url, platform.key, concurrency, count, seed)
        through["cpu_s"] = round(cpu_s(platform) - begin, 2)
        alone = engine.measure(Load(
            streams=concurrency, requests=count, prompt_tokens=NUM_PROMPT, output_tokens=NUM_OUTPUT, vocab_size=VOCAB,
            seed=seed,
        ))  # fmt: skip
        ratios = {
            "wall": round(through["output_tokens_per_s"] / alone["output_tokens_per_s"], 3),
            "cpu": round(alone["cpu_s"] / through["cpu_s"], 3),
        }
        rows.append({"concurrency": concurrency, "platform": through, "engine_alone": alone, "ratio": ratios})
        show(rows[-1])
    return rows


def cpu_s(platform: Platform) -> float:
    """CPU time of all processes of the platform so far."""
    first = psutil.Process(platform.process.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (first, *first.children(recursive=True)))


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--repeat", type=int, default=2),
        flag("--model", type=Path, default=MODEL, help="folder"),
        flag(
            "--threads",
            type=int,
            default=0,
            help="of a worker and of the engine; 0 shares the cores as `stratos up` does",
        ),
        flag("--as-started", action="store_true", help="unlike settings: the platform has a prefill worker, too"),
    )
