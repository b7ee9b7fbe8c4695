"""Matrix products whose result for a row does not depend on how many other rows there are.

Libraries choose their kernel by the number of rows M, and kernels add in different orders.  Which numbers of rows
agree is found by trying, on weights of the same shape made for it: the true sums are 0, so what is computed is the
rounding alone, and another order shows even where results are bfloat16.  The product of M equal rows must be M times
the same bits, and the same for every M.  Where it is not, rows are padded with zeros until it is: measured on oneDNN's
packed weights two rows suffice (one row alone takes another kernel where in_features is large), MKL in float32 wants
a multiple of a few rows per thread.  Only numbers of rows that were tried are ever computed: what lies between two of
them is padded to the larger one, what lies above is cut.

What is found holds for the number of threads it was tried with.  Whether another number gives other bits is not tried:
a library may change its way at a shape that no trial has, so the numerics id names the number (``runner.numerics``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""Maps [tokens, in_features] to [tokens, out_features]."""

DISTINCT_OUTPUTS = 64
LARGE_WEIGHT = 1 << 23
"""Elements from which on fewer numbers of rows are tried, so that a large model starts in time."""


def probed_rows(num_elements: int) -> tuple[int, ...]:
    """Numbers of rows to try for a weight, and to compute later."""
    if num_elements > LARGE_WEIGHT:
        return (1, 2, 4, 8, 16, 32, 64, 128, 256)
    return (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True, slots=True)
class RowPadding:
    """How many rows to compute for how many are wanted."""

    minimum: int
    multiple: int

    def rows(self, count: int) -> int:
        """Rows to compute for ``count``."""
        return max(self.minimum, -(-count // self.multiple) * self.multiple)

    def sizes(self, counts: Sequence[int]) -> list[int]:
        """The different numbers of rows that ``counts`` lead to, ascending."""
        return sorted({self.rows(count) for count in counts})


PADDINGS = (RowPadding(1, 1), RowPadding(2, 1), *(RowPadding(m, m) for m in (4, 8, 16, 32, 64)))
"""Cheapest first."""


class InvariantLinear:
    """A linear layer of which a row's result depends on that row alone.

    Args:
        linear: the layer.
        sizes: numbers of rows that were found to agree, ascending; no other is computed.
    """

    __slots__ = ("_linear", "_sizes")

    def __init__(self, linear: Linear, sizes: Sequence[int]) -> None:
        self._linear, self._sizes = linear, sizes

    def __call__(self, x: Tensor) -> Tensor:
        count, largest = x.shape[0], self._sizes[-1]
        if count > largest:
            return torch.cat([self(x[begin : begin + largest]) for begin in range(0, count, largest)])
        padded = self._sizes[bisect_left(self._sizes, count)]
        if padded == count:
            return self._linear(x.contiguous())
        rows = x.new_zeros(padded, x.shape[1])
        rows[:count] = x
        return self._linear(rows)[:count]


class RowByRow:
    """The last resort: one product per row."""

    __slots__ = ("_linear",)

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([self._linear(row.contiguous()) for row in x.unsqueeze(1)])


class RowProbe:
    """A layer and an input row whose products tell in which order they were added.

    Args:
        make: builds the layer from a weight and a bias.
        shape: (out_features, in_features).
        has_bias: whether the layers in question have one.
        dtype: compute type.
    """

    def __init__(
        self,
        make: Callable[[Tensor, Tensor | None], Linear],
        shape: tuple[int, int],
        has_bias: bool,
        dtype: torch.dtype,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        out_features, in_features = shape
        half = in_features // 2
        shuffled = torch.randperm(half, generator=generator)
        distinct = torch.zeros(min(out_features, DISTINCT_OUTPUTS), in_features)
        row = torch.zeros(1, in_features)
        for tensor, sign in ((distinct, -1), (row, 1)):
            tensor[:, :half] = torch.randn(tensor.shape[0], half, generator=generator).to(dtype)
            tensor[:, half : 2 * half] = sign * tensor[:, shuffled]
        repeats = -(-out_features // DISTINCT_OUTPUTS)
        weight = distinct.to(dtype).repeat(repeats, 1)[:out_features]
        self._linear = make(weight, torch.zeros(out_features, dtype=dtype) if has_bias else None)
        self._row = row.to(dtype)
        self._probed_rows = probed_rows(out_features * in_features)

    def bits(self, rows: int) -> bytes | None:
        """Bits of a row of the product of ``rows`` equal rows; ``None`` where they are not equal."""
        out = self._linear(self._row.expand(rows, -1).contiguous())
        return out[0].float().numpy().tobytes() if bool((out == out[0]).all()) else None

    def padding(self) -> RowPadding | None:
        """The cheapest under which every probed number of rows gives the same bits; ``None`` where none does."""
        bits: dict[int, bytes | None] = {}
        for padding in PADDINGS:
            sizes = padding.sizes(self._probed_rows)
            for size in sizes:
                if size not in bits:
                    bits[size] = self.bits(size)
                if bits[size] is None or bits[size] != bits[sizes[0]]:
                    break
            else:
                return padding
        return None
