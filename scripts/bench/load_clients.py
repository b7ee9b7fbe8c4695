"""Three load generators on one server, by turns: `stratos bench`, GuideLLM and AIPerf must say the same of it.

    python -m scripts.bench.load_clients --guidellm BIN/guidellm --aiperf BIN/aiperf --out x.json

Both others have an environment of their own (``pip install guidellm``, ``pip install aiperf``); one that is not named
is left out.  The server is a platform of one simulated worker, whose steps take the same time whoever asks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench.harness import MODEL, by_turns, flag, run_bench
from stratos.reproduce.load.local_platform import Platform, running_platform

FIGURES = ("ttft_mean_ms", "ttft_p50_ms", "itl_mean_ms", "e2e_p50_ms", "requests_per_s")
_PLATFORM = ("--engine", "fake", "--prefill", "0", "--decode", "1", "--model", str(MODEL))
Figures = dict[str, float]


def ours(platform: Platform, args: argparse.Namespace, out: Path, seed: int) -> Figures:
    """`stratos bench`, as its JSON says."""
    _run(
        [
            Path(sys.executable).with_name("stratos"), "bench", "--data-dir", platform.data_dir,
            "--arrivals", _arrivals(args), "--requests", args.requests, "--prompt-tokens", args.prompt,
            "--output-tokens", args.output, "--seed", seed, "--out", out / "ours.json",
        ],
    )  # fmt: skip
    [found] = json.loads((out / "ours.json").read_text())
    names = ("mean_ttft_ms", "p50_ttft_ms", "mean_tpot_ms", "p50_e2el_ms", "request_throughput")
    return dict(zip(FIGURES, (found[name] for name in names), strict=True))


def guidellm(platform: Platform, args: argparse.Namespace, out: Path, seed: int) -> Figures:
    """GuideLLM, of the requests that were answered."""
    profile = ("concurrent", args.streams) if args.streams else ("poisson", args.rate)
    _run(
        [
            args.guidellm, "benchmark", "run", "--target", platform.url.removesuffix("/v1"), "--model", MODEL.name,
            "--backend-kwargs", json.dumps({"api_key": platform.key}), "--request-type", "text_completions",
            "--processor", MODEL, "--profile", profile[0], "--rate", profile[1], "--max-requests", args.requests,
            "--data", json.dumps({"prompt_tokens": args.prompt, "output_tokens": args.output}),
            "--random-seed", seed, "--output-path", out / "guidellm.json", "--disable-progress", "--disable-console",
        ],
    )  # fmt: skip
    [found] = json.loads((out / "guidellm.json").read_text())["benchmarks"]
    of = {name: value["successful"] for name, value in found["metrics"].items() if "successful" in (value or ())}
    ttft, latency = of["time_to_first_token_ms"], of["request_latency"]
    return {
        "ttft_mean_ms": ttft["mean"],
        "ttft_p50_ms": ttft["percentiles"]["p50"],
        "itl_mean_ms": of["inter_token_latency_ms"]["mean"],
        "e2e_p50_ms": latency["percentiles"]["p50"] * 1e3,
        "requests_per_s": of["requests_per_second"]["mean"],
    }


def aiperf(platform: Platform, args: argparse.Namespace, out: Path, seed: int) -> Figures:
    """AIPerf, which counts tokens by its own tokenizer."""
    shape = ("--concurrency", args.streams) if args.streams else ("--request-rate", args.rate)
    _run(
        [
            args.aiperf, "profile", "--model", MODEL.name, "--url", platform.url.removesuffix("/v1"),
            "--endpoint-type", "completions", "--streaming", "--api-key", platform.key, "--tokenizer", MODEL,
            *shape, "--request-count", args.requests, "--random-seed", seed, "--use-server-token-count",
            "--synthetic-input-tokens-mean", args.prompt, "--synthetic-input-tokens-stddev", 0,
            "--output-tokens-mean", args.output, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true",
            "--artifact-dir", out / "aiperf", "--ui", "none",
        ],
    )  # fmt: skip
    [path] = (out / "aiperf").rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text())
    return {
        "ttft_mean_ms": found["time_to_first_token"]["avg"],
        "ttft_p50_ms": found["time_to_first_token"]["p50"],
        "itl_mean_ms": found["inter_token_latency"]["avg"],
        "e2e_p50_ms": found["request_latency"]["p50"],
        "requests_per_s": found["request_throughput"]["avg"],
    }


CLIENTS: dict[str, Callable[[Platform, argparse.Namespace, Path, int], Figures]] = {
    "stratos": ours,
    "guidellm": guidellm,
    "aiperf": aiperf,
}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All clients by turns; a ratio is ours over theirs, of medians over the rounds."""
    names = [name for name in CLIENTS if name == "stratos" or getattr(args, name)]
    pace = {"STRATOS_DECODE_WORKER_FAKE__STEP_S": str(args.step_ms / 1e3)}
    with running_platform(*_PLATFORM, env=pace) as platform:

        def measure(name: str, round_number: int) -> Figures:
            with tempfile.TemporaryDirectory() as folder:
                found = CLIENTS[name](platform, args, Path(folder), round_number)
            return {key: round(value, 3) for key, value in found.items()}

        rounds = by_turns(args.rounds, names, measure)
    medians = {name: {key: statistics.median(run[key] for run in rounds[name]) for key in FIGURES} for name in names}
    ratios = {
        name: {key: round(medians["stratos"][key] / medians[name][key], 4) for key in FIGURES} for name in names[1:]
    }
    return {"load": {key: value for key, value in vars(args).items() if type(value) is int or type(value) is float},
            "arrivals": _arrivals(args), "medians": medians, "ratios": ratios, "rounds": rounds}  # fmt: skip


def _arrivals(args: argparse.Namespace) -> str:
    return f"closed:{args.streams}" if args.streams else f"poisson:{args.rate}"


def _run(command: list[Any]) -> None:
    texts = [str(part) for part in command]
    done = subprocess.run(texts, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise SystemExit(f"{texts[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--guidellm", default="", help="its program"),
        flag("--aiperf", default="", help="its program"),
        flag("--streams", type=int, default=4, help="of a closed loop; 0 sends at --rate"),
        flag("--rate", type=float, default=2.0, help="requests a second, Poisson"),
        flag("--requests", type=int, default=40),
        flag("--prompt", type=int, default=128, help="tokens"),
        flag("--output", type=int, default=64, help="tokens"),
        flag("--step-ms", type=float, default=25.0),
        flag("--rounds", type=int, default=3),
    )
