"""Which kernel multiplies few rows by a weight: measured once at start, by size of the weight and number of rows.

    candidates   the framework's library as it is, its other library, and shapes of our own kernel (``few_rows``)
    measured     over all weights of one size in turn, so that the cache does not answer
    table        (rows, outputs, inputs) -> the fastest candidate; what was not measured goes to the framework

The table is filled before decode steps are captured, for their batch sizes.  Importing this needs Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.layers.linear import Linear, LinearFactory, PlainLinear
from stratos.engine.revisions import revised
from stratos.engine.triton_kernels.few_rows import MAX_ROWS, SHAPES, few_rows_linear

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Seconds = Callable[[list[Callable[[], object]]], float]
"""Time of one of the works, when all of them run one after the other."""
LEAST_GAIN = 1.02
"""A candidate that is not so many times as fast as the framework's choice is not taken."""
_log = logging.getLogger(__name__)


def _by_cublaslt(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        return F.linear(x, weight, bias)
    finally:
        torch.backends.cuda.preferred_blas_library(before)


FRAMEWORK = "framework"


def own_products(*, has_pdl: bool = False) -> dict[str, Product]:
    """Shapes of our own kernel, by name; ``has_pdl``: launched as ``dependent_launch`` says."""
    return {
        f"few-rows-{s.columns}-{s.step}-{s.shares}": partial(few_rows_linear, shape=s, has_pdl=has_pdl) for s in SHAPES
    }


def on_a_gpu(*, has_pdl: bool = False) -> dict[str, Product]:
    """Candidates by name."""
    return {"cublaslt": _by_cublaslt, **own_products(has_pdl=has_pdl)}


@dataclass(slots=True)
class ProductChoice:
    """The table of one model."""

    candidates: dict[str, Product] = field(default_factory=on_a_gpu)
    chosen: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """(rows, outputs, inputs) -> name of a candidate; absent: the framework's."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` by what was chosen."""
        name = self.chosen.get((x.shape[0], *weight.shape)) if self.chosen else None
        return F.linear(x, weight, bias) if name is None else self.candidates[name](x.contiguous(), weight, bias)

    def measure(self, layers: Iterable[MeasuredLinear], sizes: Sequence[int], seconds: Seconds) -> None:
        """Fill the table for batches of ``sizes`` rows."""
        by_size: dict[tuple[int, int], list[MeasuredLinear]] = {}
        for layer in layers:
            by_size.setdefault((layer.weight.shape[0], layer.weight.shape[1]), []).append(layer)
        for (num_out, num_in), same in by_size.items():
            for rows in (size for size in sizes if size <= MAX_ROWS):
                x = torch.randn(rows, num_in, dtype=same[0].weight.dtype, device=same[0].weight.device)
                times = {name: _seconds(product, x, same, seconds) for name, product in self.candidates.items()}
                base = _seconds(F.linear, x, same, seconds)
                best = min(times, key=times.__getitem__, default=FRAMEWORK)
                if times and times[best] * LEAST_GAIN <= base:
                    self.chosen[rows, num_out, num_in] = best
                    _log.info("%d x %d by %d rows: %s, %.2fx", num_out, num_in, rows, best, base / times[best])


def _seconds(product: Product, x: Tensor, layers: list[MeasuredLinear], seconds: Seconds) -> float:
    try:
        return seconds([partial(product, x, layer.weight, layer.bias) for layer in layers])
    except Exception as error:  # a library or a shape that this device does not have is not a candidate
        _log.info("a product of %d rows is not possible by %s: %s", x.shape[0], product, error)
        return float("inf")


class MeasuredLinear(PlainLinear):
    """``x @ weight.T + bias`` by the kernel that was fastest for that many rows."""

    __slots__ = ("_choice",)

    def __init__(self, weight: Tensor, bias: Tensor | None, choice: ProductChoice) -> None:
        super().__init__(weight.contiguous(), bias)
        self._choice = choice

    def __call__(self, x: Tensor) -> Tensor:
        return self._choice.product(x, self.weight, self.bias)


class MeasuredLinearFactory(LinearFactory):
    """Builds every linear layer of one model over one table; keeps the layers until they are measured."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, has_pdl: bool = False) -> None:
        super().__init__(device, dtype, enable_prepacked_gemm=False)
        self.kernel_name, self.libraries = revised("triton-products", "measured-gemm"), ("torch", "triton")
        self.choice = ProductChoice(on_a_gpu(has_pdl=has_pdl))

    def plain(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return MeasuredLinear(weight, bias, self.choice)


def measure_products(linears: Iterable[object], sizes: Sequence[int], seconds: Seconds) -> None:
    """Fill the tables of those layers that have one."""
    layers = [linear for linear in linears if isinstance(linear, MeasuredLinear)]
    for choice in {id(layer._choice): layer._choice for layer in layers}.values():
        choice.measure([layer for layer in layers if layer._choice is choice], sizes, seconds)


def graph_seconds(works: list[Callable[[], object]], repeats: int = 3) -> float:
    """``Seconds`` on a GPU: the best of several replays of a graph of all works."""
    for work in works[:1] * 2:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    best = float("inf")
    for _ in range(repeats + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best / len(works)
