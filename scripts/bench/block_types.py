"""Measure the products of a step by type of a GGUF file's blocks, by turns in one process.

    python -m scripts.bench.block_types --out benchmarks/results/block-types-2core-cpu.json

The layers are those of the Llama of 213 M parameters, with random codes; without attention, norms and output layer.
A figure is CPU time of one thread: the machine may be shared.  Q4_K_M has v and down in Q6_K, as half
of the layers of such a file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from scripts.bench.harness import flag, run_bench
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.engine.layers.invariance import Linear
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.native.library import load_native

DTYPE, LAYERS = torch.bfloat16, 16
PRODUCTS = {
    "qkv": ((1024, 256, 256), 1024),
    "output": ((1024,), 1024),
    "gate_up": ((5632,), 1024),
    "down": ((1024,), 2816),
}
"""Outputs of each part, and inputs."""
TYPES = ("BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q4_K_M")
ROWS = (1, 8, 32, 512)
AnyWeight = Tensor | QuantisedWeight | NestedWeight


def random_weight(kind: str, outputs: int, inputs: int) -> AnyWeight:
    """A weight of one type of blocks."""
    if kind == "BF16":
        return torch.randn(outputs, inputs, dtype=DTYPE)
    if kind in ("Q8_0", "Q4_0"):
        scheme, most = (LinearScheme.INT8, 256) if kind == "Q8_0" else (LinearScheme.INT4, 16)
        codes = torch.randint(0, most, (outputs, inputs), dtype=torch.uint8)
        return QuantisedWeight(scheme=scheme, codes=codes, scales=torch.rand(outputs, inputs // 32))
    scheme, most = LinearScheme[kind], {"Q4_K": 16, "Q5_K": 32, "Q6_K": 64}[kind]
    return NestedWeight(
        scheme=scheme,
        codes=torch.randint(0, most, (outputs, inputs), dtype=torch.uint8),
        parts=torch.randint(0, 64, (outputs, inputs // 32, 2), dtype=torch.uint8),
        wholes=torch.rand(outputs, inputs // 256, 1 if kind == "Q6_K" else 2),
    )


def layer(factory: LinearFactory, kind: str) -> list[Linear]:
    """Products of one layer."""
    products = []
    for name, (parts, inputs) in PRODUCTS.items():
        kinds = ["Q4_K" if kind == "Q4_K_M" else kind] * len(parts)
        if kind == "Q4_K_M" and name in ("qkv", "down"):
            kinds[-1] = "Q6_K"
        weights = [random_weight(own, outputs, inputs) for own, outputs in zip(kinds, parts, strict=True)]
        products.append(factory.joined(weights))
    return products


def step_ms(layers: list[list[Linear]], rows: int) -> float:
    """CPU time of all products for so many rows."""
    inputs = [torch.randn(rows, inputs, dtype=DTYPE) for _, inputs in PRODUCTS.values()]
    begin = time.thread_time()
    for products in layers:
        for product, x in zip(products, inputs, strict=True):
            product(x)
    return (time.thread_time() - begin) * 1e3


def resident_bytes(layers: list[list[Linear]]) -> int:
    """Memory of all weights."""
    return sum(p.resident_bytes for products in layers for p in products if isinstance(p, NativeProduct))


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the ratio to bfloat16 in the same rounds."""
    torch.set_num_threads(1)
    library = load_native()
    factory = LinearFactory(torch.device("cpu"), DTYPE, enable_prepacked_gemm=False, library=library)
    models = {kind: [layer(factory, kind) for _ in range(LAYERS)] for kind in TYPES}
    times: dict[int, dict[str, list[float]]] = {rows: {kind: [] for kind in TYPES} for rows in ROWS}
    for _ in range(args.rounds):
        for rows in ROWS:
            for kind, layers in models.items():
                times[rows][kind].append(step_ms(layers, rows))
    base = resident_bytes(models["BF16"])
    table = [
        {"rows": rows, "type": kind, "ms": round(statistics.median(own), 2),
         "times_as_fast": round(statistics.median(b / o for b, o in zip(of["BF16"], own, strict=True)), 2)}
        for rows, of in times.items() for kind, own in of.items()
    ]  # fmt: skip
    resident = {kind: resident_bytes(layers) for kind, layers in models.items()}
    return {"kernels": library.isa, "threads": 1, "rounds": args.rounds, "products": table, "resident_bytes": resident,
            "of_bfloat16": {kind: round(size / base, 3) for kind, size in resident.items()}}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__, bench, flag("--rounds", type=int, default=5, help="rounds, each of every type and number of rows")
    )
