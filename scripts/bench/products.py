"""Matrix products of every build of the C++ kernels and of oneDNN, and their share of what the processor's units reach.

    python -m scripts.bench.products --out benchmarks/results/products-cpu.json

One thread, timed by its CPU clock, so that a busy machine disturbs little; kernels take turns.  Weights are read from
memory, as in a model: more of them pass by than a cache holds.  The peak of a build is measured in the same turns: its
instruction, with operands in registers.  Few rows are bound by memory: `weights_gb_per_s` says what they reach.
`int8` is the product of bytes, rows of bfloat16 cut to bytes included, `int8-vectors` the same without tiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.bench.harness import flag, run_bench
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.layers.linear import PackedLinear
from stratos.engine.layers.native_linear import NativeLinear
from stratos.engine.layers.quantised_linear import NO_TILES, QuantisedLinear
from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, supported_sets
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import DTYPE_CODES

ROWS = (1, 4, 8, 16, 32, 128, 512)
SHAPE = (5632, 1024)
"""Out and in features: gate and up of the 213 M model."""
STREAM_BYTES = 150_000_000
PEAK_ROUNDS = 40_000
BYTE_PEAK = 3
"""What ``stratos_peak`` takes for bytes; other types by ``DTYPE_CODES``."""
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


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to multiply."""

    library: NativeLibrary | None
    peak: int
    copies: list[Product]
    """Of its packed weight, more than fit into a cache."""
    weight_bytes: int


def of_bytes(library: NativeLibrary, weight: Tensor, *, has_tiles: bool) -> Kernel:
    """The product of bytes."""
    quantised, copies = rounded(weight, "int8"), max(1, STREAM_BYTES // weight.numel())
    layers = [QuantisedLinear(library, quantised, None, weight.dtype) for _ in range(copies)]
    for layer in layers:
        layer.argument.tile_rows = 0 if has_tiles else NO_TILES
    return Kernel(library, BYTE_PEAK, list(layers), weight.numel())


def products(libraries: list[NativeLibrary], weight: Tensor) -> dict[str, Kernel]:
    """Every kernel by name."""
    copies, code = max(1, STREAM_BYTES // weight.nbytes), DTYPE_CODES[weight.dtype]
    result = {
        library.isa: Kernel(library, code, [NativeLinear(library, weight, None) for _ in range(copies)], weight.nbytes)
        for library in libraries
    }
    if weight.dtype == torch.bfloat16:
        for library in libraries:
            result[f"{library.isa} int8"] = of_bytes(library, weight, has_tiles=True)
            if library.isa == "amx":
                result["amx int8-vectors"] = of_bytes(library, weight, has_tiles=False)
    if weight.dtype == torch.float32 or "avx512_bf16" in cpu_flags():
        result["onednn"] = Kernel(None, code, [PackedLinear(weight, None) for _ in range(copies)], weight.nbytes)
    return result


def measure(dtype: torch.dtype, seconds: float) -> list[dict[str, Any]]:
    """A row for each kernel and number of rows."""
    libraries, weight = builds(), torch.randn(SHAPE).to(dtype)
    kernels, result = products(libraries, weight), []
    for rows in ROWS:
        x = torch.randn(rows, SHAPE[1]).to(dtype)
        times: dict[str, list[float]] = {name: [] for name in kernels}
        peaks: dict[str, list[float]] = {name: [] for name, kernel in kernels.items() if kernel.library}
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end or turn < MIN_TURNS:
            turn += 1
            for name, kernel in kernels.items():
                times[name].append(timed_s(kernel.copies[turn % len(kernel.copies)], x))
                if kernel.library:
                    kernel.library.peak(kernel.peak, PEAK_ROUNDS)  # wide units sleep, and wake slowly
                    begin = time.thread_time()
                    operations = kernel.library.peak(kernel.peak, PEAK_ROUNDS)
                    peaks[name].append(operations / (time.thread_time() - begin) / 1e9)
        for name, measured in times.items():
            time_s = statistics.median(measured)
            gflops = 2 * rows * weight.numel() / time_s / 1e9
            peak = statistics.median(peaks[name]) if name in peaks else None
            result.append({
                "dtype": str(dtype).removeprefix("torch."), "kernel": name, "rows": rows, "gflops": round(gflops, 1),
                "weights_gb_per_s": round(kernels[name].weight_bytes / time_s / 1e9, 2), "runs": len(measured),
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
