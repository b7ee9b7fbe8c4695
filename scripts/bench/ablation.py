"""Measure what each optimisation of the engine gains: every switch on and off, interleaved, on one model.

    python -m scripts.bench.ablation --dtype bfloat16 --out benchmarks/results/ablation-2core-cpu.json

The model is a random Llama of 213 M parameters, written into a temporary folder with some adapters; where experts are
switched, a random Mixtral of 371 M.  Each variant is
an engine in a process of its own; it waits while another one computes.  A figure is the best of --rounds, the gain is
on against off.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.harness import by_turns, flag, run_bench, show, table
from scripts.bench.workloads import NUM_ADAPTERS, WORKLOADS
from scripts.demo.make_random_model import TOKENIZER
from stratos.reproduce.material.random_model import SHAPES, write_adapter, write_model
from stratos.text.gguf.folder import write_model_folder
from tests.support.reference.gguf_models import save_llama_gguf

SHAPE = "llama-213m"
BLOCKS = {"kv_pool_bytes": 512 * 1024 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an engine by name, in the groups of ``RunnerConfig`` and ``SchedulerConfig``."""

    runner: dict[str, Any] = field(default_factory=dict)
    streaming: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, bool] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    """Other rows have none: what a random model says repeats itself, so drafts would be in every figure."""
    baseline: dict[str, Any] = field(default_factory=dict)

    def with_changes(self, other: Settings) -> Settings:
        """A copy in which those of ``other`` win."""
        return Settings(**{name: value | getattr(other, name) for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One optimisation: the settings that turn it off, and where it shows."""

    workloads: tuple[str, ...]
    off: Settings
    everywhere: Settings = field(default_factory=Settings)
    """Settings of both sides, where the default would hide the difference."""
    blocks: str = ""
    """Type of blocks of a GGUF file with the same weights, in place of the float model."""
    shape: str = SHAPE
    """Of the model; adapters are for the default one alone."""


DENSE = ("decode-1", "decode-8", "prefill-1024")
OFF_ALONE = {
    "native kernels": Ablation(workloads=DENSE, off=Settings(kernels={"native_kernels": False})),
    "whole-step kernel": Ablation(workloads=DENSE, off=Settings(kernels={"whole_step": False})),
    "native GEMM": Ablation(workloads=DENSE, off=Settings(kernels={"native_gemm": False})),
    "integer tiles": Ablation(
        workloads=DENSE,
        off=Settings(kernels={"integer_tiles": False}),
        everywhere=Settings(runner={"quantization": "int8"}),
    ),
    "grouped codes": Ablation(
        workloads=DENSE,
        off=Settings(kernels={"grouped_codes": False}),
        everywhere=Settings(runner={"quantization": "int4+head"}),
    ),
    "grouped K-quants": Ablation(workloads=DENSE, off=Settings(kernels={"grouped_codes": False}), blocks="Q4_K"),
    "kept codes": Ablation(workloads=DENSE, off=Settings(kernels={"kept_codes": False}), blocks="Q4_K"),
    "panel runs": Ablation(workloads=DENSE, off=Settings(kernels={"panel_runs": False})),
    "panel runs of codes": Ablation(
        workloads=DENSE,
        off=Settings(kernels={"panel_runs": False}),
        everywhere=Settings(runner={"quantization": "int4+head"}),
    ),
    "packed keys": Ablation(workloads=("decode-8", "decode-8-at-1024"), off=Settings(kernels={"packed_keys": False})),
    "attention sinks": Ablation(
        workloads=("decode-8-at-1024", "prefill-1024"),
        off=Settings(kernels={"native_sinks": False}),
        everywhere=Settings(streaming={"attention_window": 508, "attention_sinks": 4}),
    ),
    "packed GEMM": Ablation(
        workloads=DENSE,
        off=Settings(kernels={"prepacked_gemm": False}),
        everywhere=Settings(kernels={"native_gemm": False}),
    ),
    "fused operations": Ablation(
        workloads=DENSE,
        off=Settings(kernels={"fused_ops": False}),
        everywhere=Settings(kernels={"whole_step": False}),
    ),
    "native sampler": Ablation(workloads=("sampled-8",), off=Settings(kernels={"native_sampler": False})),
    "steady steps": Ablation(
        workloads=("decode-1", "decode-8"),
        off=Settings(kernels={"kept_inputs": False}, switches={"steady_steps": False}),
    ),
    "exactness given up": Ablation(
        workloads=DENSE, off=Settings(runner={"exact": True}), everywhere=Settings(runner={"exact": False})
    ),
    "one step ahead": Ablation(
        workloads=("decode-1", "decode-8"),
        off=Settings(switches={"overlap": False}),
        everywhere=Settings(switches={"overlap": True}),
    ),
    "prefix cache": Ablation(workloads=("shared-prefix",), off=Settings(switches={"prefix_cache": False})),
    "chunked prefill": Ablation(workloads=("intruder",), off=Settings(switches={"chunked_prefill": False})),
    "shared steps": Ablation(
        workloads=("behind-long", "prompts-mixed"), off=Settings(switches={"fair_prompts": False})
    ),
    "step-time budget": Ablation(
        workloads=("intruder",),
        off=Settings(scheduler={"step_time_budget_ms": 0.0}),
        everywhere=Settings(scheduler={"step_time_budget_ms": 50.0}),
    ),
    "masks in parallel": Ablation(
        workloads=("constrained-8",),
        off=Settings(switches={"parallel_grammar_masks": False}),
        everywhere=Settings(switches={"parallel_grammar_masks": True}),
    ),
    "speculation": Ablation(
        workloads=("decode-1", "decode-8", "sampled-8"),
        off=Settings(speculation={"method": "off"}),
        everywhere=Settings(speculation={"method": "ngram"}),
    ),
    "drafts as long as they pay": Ablation(
        workloads=("decode-1", "decode-8", "sampled-8"),
        off=Settings(speculation={"is_adaptive": False}),
        everywhere=Settings(speculation={"method": "ngram"}),
    ),
    "adapters in the whole step": Ablation(
        workloads=("adapters-8",), off=Settings(kernels={"whole_step_adapters": False})
    ),
    "experts in the whole step": Ablation(
        workloads=("decode-1", "decode-8"), off=Settings(kernels={"whole_step_experts": False}), shape="experts-371m"
    ),
    "sorted adapters": Ablation(workloads=("adapters-8",), off=Settings(kernels={"sorted_adapters": False})),
}
BASELINES = {
    "KV cache": Ablation(workloads=("decode-1",), off=Settings(baseline={"kv_cache": False})),
    "paged KV": Ablation(workloads=("ragged",), off=Settings(baseline={"kv_allocation": "contiguous"})),
    "mixed steps": Ablation(workloads=("intruder",), off=Settings(baseline={"scheduling": "prefill-first"})),
    "continuous batching": Ablation(
        workloads=("ragged",),
        off=Settings(baseline={"batching": "static"}),
        everywhere=Settings(scheduler={"max_num_seqs": 8}),
    ),
    "batching": Ablation(workloads=("ragged",), off=Settings(scheduler={"max_num_seqs": 1})),
}
ABLATIONS = OFF_ALONE | BASELINES


class Variant:
    """An engine in a child process that runs workloads when asked to."""

    def __init__(self, settings: Settings, adapters: Path) -> None:
        config = {"settings": asdict(settings), "adapters": str(adapters)}
        command = [sys.executable, "-m", "scripts.bench.ablation", "--serve", json.dumps(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def measure(self, workload: str, seed: int) -> float:
        """Run one workload."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{workload} {seed}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the variant's process ended; its message is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(config: dict[str, Any]) -> None:
    """Child: load, then answer one line per workload."""
    from stratos.core.files.adapter_files import read_adapter_files
    from stratos.engine.core import EngineCore
    from stratos.engine.runner.torch_runner import TorchRunner
    from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig, StreamingConfig
    from stratos.engine.speculation.making import make_proposer
    from stratos.engine.switches import Baselines, KernelSwitches, SchedulerSwitches

    settings = Settings(**config["settings"])
    model_path = Path(settings.runner.pop("model_path"))
    runner = TorchRunner.load(
        RunnerConfig(
            model_path=model_path,
            **settings.runner,
            streaming=StreamingConfig(**settings.streaming),
            kernels=KernelSwitches(**settings.kernels),
        )
    )
    scheduler = SchedulerConfig(
        **{"step_time_budget_ms": 0.0, **settings.scheduler},
        switches=SchedulerSwitches(**settings.switches),
        speculation=SpeculationConfig(**{"method": "off", **settings.speculation}),
        baseline=Baselines(**settings.baseline),
    )
    engine = EngineCore(runner, scheduler, proposer=make_proposer(scheduler, runner, None))
    for folder in sorted(Path(config["adapters"]).iterdir()):
        engine.load_adapter(read_adapter_files(folder))
    WORKLOADS["decode-1"].run(engine, random.Random(-1))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        workload, seed = line.split()
        print(json.dumps(WORKLOADS[workload].run(engine, random.Random(int(seed)))), flush=True)


def measure(ablation: Ablation, base: Settings, adapters: Path, rounds: int) -> list[dict[str, Any]]:
    """All workloads of one ablation, on and off in turn."""
    base = base.with_changes(ablation.everywhere)
    variants = {"on": Variant(base, adapters), "off": Variant(base.with_changes(ablation.off), adapters)}
    rows = []
    for name in ablation.workloads:
        workload = WORKLOADS[name]

        def run(arm: str, turn: int, name: str = name) -> float:
            return variants[arm].measure(name, 2 * turn + (arm == "off"))

        runs = by_turns(rounds, variants, run)
        best = max if workload.is_higher_better else min
        with_it, without = best(runs["on"]), best(runs["off"])
        gain = with_it / without if workload.is_higher_better else without / with_it
        figures = {"on": with_it, "off": without, "gain": round(gain, 2)}
        pairs = list(zip(runs["on"], runs["off"], strict=True))
        rows.append({"workload": name, "unit": workload.unit, **figures, "runs": pairs})
    for variant in variants.values():
        variant.close()
    return rows


def table_of(results: dict[str, list[dict[str, Any]]]) -> str:
    """Lines for a terminal."""
    titles = ("optimisation", "workload", "on", "off", "gain", "unit")
    return table(titles, [
        (name, row["workload"], f"{row['on']:.1f}", f"{row['off']:.1f}", f"{row['gain']:.2f}x", row["unit"])
        for name, rows in results.items() for row in rows
    ])  # fmt: skip


def with_blocks(model: Path, blocks: str) -> Path:
    """Folder of a GGUF file of the model, its linear layers in one type of blocks."""
    path = model.with_name(f"{blocks}.gguf")
    save_llama_gguf(model, path, lambda name, _: "BF16" if name == "token_embd.weight" else blocks)
    write_model_folder(path, path.with_suffix(""))
    return path.with_suffix("")


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every ablation that was named."""
    with tempfile.TemporaryDirectory() as folder:
        adapters, none = Path(folder, "adapters"), Path(folder, "no-adapters")
        none.mkdir()
        for index in range(NUM_ADAPTERS):
            write_adapter(SHAPES[SHAPE], adapters / str(index), 8 << index % 2, index)
        results = {}
        for name in args.only:
            shape, blocks = ABLATIONS[name].shape, ABLATIONS[name].blocks
            model = Path(folder, shape)
            if not model.exists():
                write_model(shape, model, TOKENIZER)
            own = with_blocks(model, blocks) if blocks else model
            base = Settings(runner={"model_path": str(own), "dtype": args.dtype, "num_threads": args.threads, **BLOCKS})
            results[name] = measure(ABLATIONS[name], base, adapters if shape == SHAPE else none, args.rounds)
            show(f"measured {name}")
    return {
        "model": "random Llama, 213 M parameters; with experts: random Mixtral, 371 M",
        "dtype": args.dtype, "threads": args.threads, "rounds": args.rounds, "results": results,
        "table": table_of(results),
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(json.loads(sys.argv[2]))
        sys.exit()
    run_bench(
        __doc__,
        bench,
        flag("--dtype", choices=("float32", "bfloat16"), default="bfloat16"),
        flag("--threads", type=int, default=os.cpu_count() or 1),
        flag("--rounds", type=int, default=3),
        flag("--only", choices=sorted(ABLATIONS), nargs="+", default=list(ABLATIONS)),
    )
