"""Measure the platform on this machine: cold start to first token, TTFT, ITL, and throughput through the gateway.

    python -m scripts.bench.whole_platform --out benchmarks/results/platform.json

Starts ``stratos up`` with the shipped model, and beside it measures the engine alone in this process, in turn
with the platform (platform, engine, platform, engine), never both computing at once.  All requests are 128 random
prompt tokens in and 64 tokens out, greedy, no early end; prompts never repeat, so the prefix cache cannot help.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from typing import Any

from scripts.bench.closed_load import closed_load, closed_row
from scripts.bench.harness import MODEL, flag, run_bench, show
from stratos.reproduce.load.local_platform import running_platform

NUM_PROMPT, NUM_OUTPUT, VOCAB = 128, 64, 4096
CONCURRENCIES = (1, 8, 32)


def load(url: str, key: str, concurrency: int, num_requests: int, seed: int) -> dict[str, float]:
    """Closed loop of ``concurrency`` streams through the gateway."""
    found = closed_load(
        url, key, concurrency, models=(MODEL.name,), requests=num_requests, prompt_tokens=str(NUM_PROMPT),
        output_tokens=str(NUM_OUTPUT), vocab_size=VOCAB, seed=seed,
    )  # fmt: skip
    return closed_row(found, concurrency)


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
    with running_platform(data_dir=data_dir) as platform:
        times = load(platform.url, platform.key, 1, 1, 1)
    first = platform.start_s + times["ttft_p50_ms"] / 1e3
    return {"to_url_s": round(platform.start_s, 2), "to_first_token_s": round(first, 2)}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Cold starts, then throughput, with one data directory."""
    with tempfile.TemporaryDirectory() as data_dir:
        starts = [cold_start(data_dir) for _ in range(args.repeat)]
        rows = throughput(args.repeat, data_dir)
    return {"workload": f"{NUM_PROMPT} in / {NUM_OUTPUT} out, greedy", "cold_start": starts, "throughput": rows}


def throughput(repeat: int, data_dir: str) -> list[dict[str, Any]]:
    """Rows of the platform and of the engine alone by turns."""
    rows = []
    with running_platform(data_dir=data_dir) as platform:
        load(platform.url, platform.key, 2, 4, 99)
        for concurrency, turn in itertools.product(CONCURRENCIES, range(repeat)):
            count, seed = max(6, 3 * concurrency), 1000 * concurrency + turn
            through = load(platform.url, platform.key, concurrency, count, seed)
            alone = engine_alone(concurrency, count, seed)
            rows.append({"concurrency": concurrency, "platform": through, "engine_alone": alone})
            show(rows[-1])
    return rows


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--repeat", type=int, default=2))
