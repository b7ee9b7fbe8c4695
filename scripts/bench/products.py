"""Matrix products of every build of the C++ kernels and of oneDNN, and their share of what the processor's units reach.

    python -m scripts.bench.products --out benchmarks/results/products-cpu.json

One thread, timed by its CPU clock, so that a busy machine disturbs little; kernels take turns.  Weights are read from
memory, as in a model: more of them pass by than a cache holds.  The peak of a build is measured in the same turns: its
instruction, with operands in registers.  Few rows are bound by memory: `weights_gb_per_s` says what they reach.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scripts.bench.harness import flag, run_bench
from stratos.engine.layers.linear import PackedLinear
from stratos.engine.layers.native_linear import NativeLinear
from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, supported_sets
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import DTYPE_CODES

ROWS = (1, 4, 8, 16, 32, 128, 512)
SHAPE = (5632, 1024)
"""Out and in features: gate and up of the 213 M model."""
STREAM_BYTES = 150_000_000
PEAK_ROUNDS = 40_000
MIN_TURNS = 9
Product = Callable[[Tensor], Tensor]


def timed_s(product: Product, x: Tensor) -> float:
    """CPU time of this thread."""
    begin = time.thread_time()
    product(x)
    return time.thread_time() - begin


def builds() -> list[NativeLibrary]:
    """Builds that this processor can run and setup has made."""
    return [
        NativeLibrary(SOURCE_FOLDER / isa.file_name, isa.name)
        for isa in supported_sets(cpu_flags())
        if (SOURCE_FOLDER / isa.file_name).exists()
    ]


def products(libraries: list[NativeLibrary], weight: Tensor) -> dict[str, list[Product]]:
    """Copies of each kernel's packed weight, more than fit into a cache."""
    copies = max(1, STREAM_BYTES // weight.nbytes)
    result: dict[str, list[Product]] = {
        library.isa: [NativeLinear(library, weight, None) for _ in range(copies)] for library in libraries
    }
    if weight.dtype == torch.float32 or "avx512_bf16" in cpu_flags():
        result["onednn"] = [PackedLinear(weight, None) for _ in range(copies)]
    return result


def measure(dtype: torch.dtype, seconds: float) -> list[dict[str, Any]]:
    """A row for each kernel and number of rows."""
    libraries, weight = builds(), torch.randn(SHAPE).to(dtype)
    kernels, result = products(libraries, weight), []
    for rows in ROWS:
        x = torch.randn(rows, SHAPE[1]).to(dtype)
        times: dict[str, list[float]] = {name: [] for name in kernels}
        peaks: dict[str, list[float]] = {library.isa: [] for library in libraries}
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end or turn < MIN_TURNS:
            turn += 1
            for name, copies in kernels.items():
                times[name].append(timed_s(copies[turn % len(copies)], x))
            for library in libraries:
                library.peak(DTYPE_CODES[dtype], PEAK_ROUNDS)  # wide units sleep, and wake slowly
                begin = time.thread_time()
                operations = library.peak(DTYPE_CODES[dtype], PEAK_ROUNDS)
                peaks[library.isa].append(operations / (time.thread_time() - begin) / 1e9)
        for name, measured in times.items():
            time_s = statistics.median(measured)
            gflops = 2 * rows * weight.numel() / time_s / 1e9
            peak = statistics.median(peaks[name]) if name in peaks else None
            result.append({
                "dtype": str(dtype).removeprefix("torch."), "kernel": name, "rows": rows, "gflops": round(gflops, 1),
                "weights_gb_per_s": round(weight.nbytes / time_s / 1e9, 2), "runs": len(measured),
                "peak_gflops": peak and round(peak, 1), "share_of_peak": peak and round(gflops / peak, 3),
            })  # fmt: skip
    return result


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both types of numbers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = sorted(name for name in cpu_flags() if name.startswith(("avx", "amx", "fma")))
    rows = [row for dtype in (torch.bfloat16, torch.float32) for row in measure(dtype, args.seconds)]
    return {"features": features, "weight": SHAPE, "threads": 1, "rows": rows}


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--seconds", type=float, default=3.0, help="per number of rows"))
