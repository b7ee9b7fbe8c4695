"""A matrix product of which a row's bits depend on that row alone: one program shape for every number of rows.

A program computes ``ROWS`` rows and ``COLUMNS`` columns and walks the inputs in steps of ``STEP`` in fixed order;
nothing is split along the inputs.  A library chooses other kernels, and other orders of summing, for other numbers of
rows, and is faster for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, STEP = 64, 64, 64
FLOAT32_TILE = 32
"""Tile of products in float32, which no warp-group multiplies."""


@triton.jit(do_not_specialize=["num_rows"])
def _linear_kernel(
    out,
    x,
    weight,
    bias,
    num_rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, is_column = rows < num_rows, columns < OUT
    lefts = x + rows.to(tl.int64)[:, None] * IN
    rights = weight + columns.to(tl.int64)[:, None] * IN
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, IN, STEP):
        inputs = begin + tl.arange(0, STEP)
        is_input = (inputs < IN)[None, :]
        left = tl.load(lefts + inputs[None, :], mask=is_row[:, None] & is_input, other=0.0)
        right = tl.load(rights + inputs[None, :], mask=is_column[:, None] & is_input, other=0.0)
        acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    places = rows.to(tl.int64)[:, None] * OUT + columns[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` [rows, out] of ``x`` [rows, in] and ``weight`` [out, in], both contiguous."""
    num_rows, (num_out, num_in) = x.shape[0], weight.shape
    out = x.new_empty(num_rows, num_out)
    if not num_rows:
        return out
    rows, columns, step = (FLOAT32_TILE,) * 3 if x.dtype == torch.float32 else (ROWS, COLUMNS, STEP)
    _linear_kernel[(triton.cdiv(num_out, columns), triton.cdiv(num_rows, rows))](
        out,
        x,
        weight,
        weight if bias is None else bias,
        num_rows,
        IN=num_in,
        OUT=num_out,
        HAS_BIAS=bias is not None,
        ROWS=rows,
        COLUMNS=columns,
        STEP=step,
        num_warps=4,
        num_stages=4,
    )
    return out
