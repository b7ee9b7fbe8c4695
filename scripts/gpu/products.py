"""Copy bandwidth, and matrix products of few rows against it: shapes of Llama-3.1-8B."""

from __future__ import annotations

from functools import partial

import torch
from triton.runtime.errors import OutOfResources

from scripts.gpu.rig import Rig, Work
from stratos.engine.layers.product_choice import Product, on_a_gpu, own_products
from stratos.engine.triton_kernels.few_rows import MAX_ROWS

SHAPES = {
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
BATCHES = (1, 8, 32, 64, 128, 256)
COPY_BYTES = 1 << 29
"""Weights that one measurement walks through: many times the cache."""


def run(rig: Rig) -> None:
    """Section ``products``."""
    bandwidth = rig.copy_bandwidth()
    rig.record("copy_gb_per_s", round(bandwidth / 1e9, 1))
    shapes = {"small": (32, 16)} if rig.is_rehearsal else SHAPES
    for name, shape in shapes.items():
        rig.attempt(f"{name}_efficiency", partial(_efficiency, rig, bandwidth, *shape))
        rig.attempt(f"{name}_candidates", partial(_candidates, rig, *shape))
    rig.attempt("square_tflop_per_s", lambda: _square(rig))


def _efficiency(rig: Rig, bandwidth: float, out_features: int, in_features: int) -> dict[str, float]:
    """Share of the bandwidth that a product reaches, by rows: bytes of weight, input and output over its time."""
    size = out_features * in_features * rig.dtype.itemsize
    copies = max(1, 2 if rig.is_rehearsal else COPY_BYTES // size)
    weights = [torch.randn(out_features, in_features, dtype=rig.dtype, device=rig.device) for _ in range(copies)]
    shares = {}
    for rows in BATCHES[:2] if rig.is_rehearsal else BATCHES:
        x = torch.randn(rows, in_features, dtype=rig.dtype, device=rig.device)
        works: list[Work] = [partial(torch.nn.functional.linear, x, weight) for weight in weights]
        moved = size + rows * (in_features + out_features) * rig.dtype.itemsize
        shares[str(rows)] = round(moved / rig.seconds(works) / bandwidth, 3)
    return shares


def _candidates(rig: Rig, out_features: int, in_features: int) -> dict[str, dict[str, float | str]]:
    """Microseconds of each candidate of ``product_choice``, by rows."""
    size = out_features * in_features * rig.dtype.itemsize
    copies = max(1, 2 if rig.is_rehearsal else COPY_BYTES // size)
    weights = [torch.randn(out_features, in_features, dtype=rig.dtype, device=rig.device) for _ in range(copies)]
    others = own_products() if rig.is_rehearsal else on_a_gpu()
    candidates: dict[str, Product] = {"framework": torch.nn.functional.linear, **others}
    found: dict[str, dict[str, float | str]] = {}
    for rows in BATCHES[:1] if rig.is_rehearsal else [rows for rows in BATCHES if rows <= MAX_ROWS]:
        x = torch.randn(rows, in_features, dtype=rig.dtype, device=rig.device)
        times = found[str(rows)] = {}
        for name, product in candidates.items():
            try:
                times[name] = round(rig.seconds([partial(product, x, weight, None) for weight in weights]) * 1e6, 2)
            except OutOfResources as error:
                times[name] = f"does not fit: {error}"[:100]
    return found


def _square(rig: Rig) -> float:
    size = 64 if rig.is_rehearsal else 8192
    a, b = (torch.randn(size, size, dtype=rig.dtype, device=rig.device) for _ in range(2))
    return round(2 * size**3 / rig.event_seconds(lambda: a @ b) / 1e12, 1)
