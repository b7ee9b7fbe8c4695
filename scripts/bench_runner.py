"""Measure decode steps and prefill of the torch runner alone, without scheduler or services; prints JSON.

Example:
    OMP_NUM_THREADS=1 python scripts/bench_runner.py --model models/base --dtype float32
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from stratos.core.request import RequestKey
from stratos.core.sampling_params import SamplingParams
from stratos.engine.plan import PlanRow, SampleSpec, StepPlan
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)


def row(runner: TorchRunner, seq: int, start: int, num_tokens: int, params: SamplingParams | None) -> PlanRow:
    """A row of made-up tokens; every sequence has blocks of its own."""
    blocks_per_seq = -(-(start + num_tokens + 1) // runner.info.geometry.block_size)
    spec = params and SampleSpec(
        key=RequestKey(str(seq), 0), choice=0, seed=seq, position=start + num_tokens, params=params,
        prompt_ids=(), output_ids=(), num_output_tokens=0,
    )  # fmt: skip
    return PlanRow(
        seq_id=seq,
        token_ids=tuple((7 * i + seq) % runner.info.vocab_size for i in range(num_tokens)),
        start=start,
        block_table=tuple(range(seq * blocks_per_seq, (seq + 1) * blocks_per_seq)),
        sample=spec,
    )


def step_ms(runner: TorchRunner, rows: list[PlanRow], repeats: int) -> dict[str, float]:
    """Milliseconds of one step, best and median."""
    plan, times = StepPlan(step=0, rows=tuple(rows)), []
    for _ in range(repeats + 3):
        begin = time.perf_counter()
        handle = runner.launch(plan)
        runner.sample(handle)
        runner.collect(handle)
        times.append((time.perf_counter() - begin) * 1e3)
    return {"min_ms": round(min(times[3:]), 3), "median_ms": round(statistics.median(times[3:]), 3)}


def measure(runner: TorchRunner, batches: list[int], context: int, repeats: int) -> dict[str, Any]:
    """Decode steps per batch size, greedy and sampled, and one prefill step."""
    result: dict[str, Any] = {}
    for batch in batches:
        for name, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
            rows = [row(runner, seq, context - 1, 1, params) for seq in range(batch)]
            result[f"decode_{name}_b{batch}"] = step_ms(runner, rows, repeats)
    result["prefill_512"] = step_ms(runner, [row(runner, 0, 0, 512, None)], max(3, repeats // 10))
    return result


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--context", type=int, default=128, help="tokens that a decode row sees")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--no-prepacked-gemm", action="store_true")
    args = parser.parse_args()
    begin = time.perf_counter()
    runner = TorchRunner.load(
        RunnerConfig(model_path=args.model, dtype=args.dtype, enable_prepacked_gemm=not args.no_prepacked_gemm)
    )
    load_s = round(time.perf_counter() - begin, 3)
    facts = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "numerics_id": runner.info.identity.numerics_id,
        "context": args.context,
        "load_s": load_s,
    }
    print(json.dumps({**facts, **measure(runner, args.batches, args.context, args.repeats)}, indent=2))


if __name__ == "__main__":
    main()
