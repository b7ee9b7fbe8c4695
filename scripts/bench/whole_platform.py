"""Measure the platform on this machine: cold start to first token, TTFT, ITL, and throughput through the gateway.

    python -m scripts.bench.whole_platform --out benchmarks/results/platform.json

Starts ``stratos up`` with the shipped model, and beside it measures the engine alone in this process, in turn
with the platform (platform, engine, platform, engine), never both computing at once.  All requests are 128 random
prompt tokens in and 64 tokens out, greedy, no early end; prompts never repeat, so the prefix cache cannot help.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stratos.cli.load import LoadSpec, run_load

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "base"
NUM_PROMPT, NUM_OUTPUT, VOCAB = 128, 64, 4096
CONCURRENCIES = (1, 8, 32)


def spec(url: str, key: str, concurrency: int, num_requests: int, seed: int) -> LoadSpec:
    """The workload of every level."""
    return LoadSpec(
        base_url=url, api_key=key, model=MODEL.name, concurrency=concurrency, num_requests=num_requests,
        num_prompt_tokens=NUM_PROMPT, num_output_tokens=NUM_OUTPUT, vocab_size=VOCAB, seed=seed,
    )  # fmt: skip


def load(url: str, key: str, concurrency: int, num_requests: int, seed: int) -> dict[str, float]:
    """Closed loop of ``concurrency`` streams through the gateway."""
    return asyncio.run(run_load(spec(url, key, concurrency, num_requests, seed))).as_json()


class Platform:
    """``stratos up`` as a child process."""

    def __init__(self, data_dir: str, extra: list[str]) -> None:
        command = [str(Path(sys.executable).with_name("stratos")), "up", "--data-dir", data_dir, *extra]
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        self.url = self._read(r"(http://\S+/v1)")
        self.key = self._read(r"(sk-[0-9a-f-]+)")
        self.start_s = time.perf_counter() - self.started

    def _read(self, pattern: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(pattern, line):
                return match[1]
        raise RuntimeError("the platform ended before it printed its URL and key")

    def stop(self) -> None:
        """Ctrl-C and wait."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)


def engine_alone(concurrency: int, num_requests: int, seed: int) -> dict[str, float]:
    """The same load on an engine in this process, without tokenizer, gRPC or HTTP."""
    from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
    from stratos.core.requests.sampling_params import SamplingParams
    from stratos.engine.core import EngineCore
    from stratos.engine.runner.torch_runner import TorchRunner
    from stratos.engine.settings import RunnerConfig, SchedulerConfig

    engine = EngineCore(
        TorchRunner.load(RunnerConfig(model_path=MODEL, num_threads=1)), SchedulerConfig(step_time_budget_ms=0.0)
    )
    rng = random.Random(seed)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True)

    def request(index: int) -> EngineRequest:
        prompt = tuple(rng.randrange(10, VOCAB) for _ in range(NUM_PROMPT))
        return EngineRequest(
            key=RequestKey(f"r{index}", 0), prompt_ids=prompt, choices=(ChoiceState(index=0),), sampling=params, seed=0
        )

    for index in range(-2, 0):
        engine.add(request(index))
    while engine.has_work:
        engine.step()
    sent = 0
    started = time.perf_counter()
    while engine.has_work or sent < num_requests:
        status = engine.status()
        while sent < num_requests and status.num_waiting + status.num_running < concurrency:
            engine.add(request(sent))
            sent += 1
            status = engine.status()
        engine.step()
    return {"output_tokens_per_s": round(num_requests * NUM_OUTPUT / (time.perf_counter() - started), 1)}


def cold_start(data_dir: str) -> dict[str, float]:
    """From starting the command to its URL, and to the first token of a first request."""
    platform = Platform(data_dir, [])
    try:
        printed = platform.start_s
        times = load(platform.url, platform.key, 1, 1, 1)
        first = printed + times["ttft_p50_ms"] / 1e3
    finally:
        platform.stop()
    return {"to_url_s": round(printed, 2), "to_first_token_s": round(first, 2)}


def environment() -> dict[str, Any]:
    """What the numbers belong to."""
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "commit": commit,
    }


def publish(document: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it where it is wanted."""
    text = json.dumps(document, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def main() -> None:
    """Run everything and print, or write, one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "workload": f"{NUM_PROMPT} in / {NUM_OUTPUT} out, greedy"}
    with tempfile.TemporaryDirectory() as data_dir:
        result["cold_start"] = [cold_start(data_dir) for _ in range(args.repeat)]
        platform = Platform(data_dir, [])
        try:
            load(platform.url, platform.key, 2, 4, 99)
            rows = []
            for concurrency in CONCURRENCIES:
                for repeat in range(args.repeat):
                    count, seed = max(6, 3 * concurrency), 1000 * concurrency + repeat
                    through = load(platform.url, platform.key, concurrency, count, seed)
                    alone = engine_alone(concurrency, count, seed)
                    rows.append({"concurrency": concurrency, "platform": through, "engine_alone": alone})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            result["throughput"] = rows
        finally:
            platform.stop()
    publish(result, args.out)


if __name__ == "__main__":
    main()
