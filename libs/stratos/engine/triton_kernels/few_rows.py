"""A matrix product of few rows, bound by reading the weight: inputs are split over programs, so that all of them read.

    products   per block of outputs and share of the inputs: partial sums in float32
    joined     the shares added up in order, with the bias (not launched where there is one share)

Which shape is fast depends on the size of the weight and the device; ``layers.product_choice`` measures.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.dependent_launch import launch_options, wait_for_previous

MAX_ROWS = 64
LEAST_ROWS = 16
"""Least rows of a tensor core's product."""
JOINED_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class FewRowsShape:
    """How a product is cut."""

    columns: int
    step: int
    shares: int
    """Shares into which the inputs are cut."""
    num_warps: int = 4
    num_stages: int = 4


SHAPES = (
    FewRowsShape(32, 128, 1), FewRowsShape(64, 128, 1), FewRowsShape(32, 128, 4), FewRowsShape(64, 128, 4),
    FewRowsShape(64, 64, 8, num_stages=6),
)  # fmt: skip
"""Shapes that are tried on a GPU."""


@triton.jit(do_not_specialize=["num_rows"])
def _products_kernel(
    out,
    x,
    weight,
    bias,
    num_rows,
    num_in,
    num_out,
    HAS_BIAS: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (blocks of columns, shares). ``out``: the result, or with several shares float32 [shares, rows, columns]."""
    if HAS_PDL:
        wait_for_previous()
    columns, share = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1)
    rows = tl.arange(0, ROWS)
    is_row, is_column = rows < num_rows, columns < num_out
    part = tl.cdiv(tl.cdiv(num_in, STEP), SHARES) * STEP
    lefts = x + rows[:, None] * num_in
    rights = weight + columns.to(tl.int64)[:, None] * num_in
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(share * part, tl.minimum((share + 1) * part, num_in), STEP):
        inputs = begin + tl.arange(0, STEP)
        is_input = (inputs < num_in)[None, :]
        left = tl.load(lefts + inputs[None, :], mask=is_row[:, None] & is_input, other=0.0)
        right = tl.load(rights + inputs[None, :], mask=is_column[:, None] & is_input, other=0.0)
        acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    places = (share * num_rows + rows).to(tl.int64)[:, None] * num_out + columns[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _joined_kernel(
    out,
    parts,
    bias,
    num_rows,
    num_out,
    HAS_BIAS: tl.constexpr,
    SHARES: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (rows, blocks of columns)."""
    if HAS_PDL:
        wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < num_out
    total = tl.zeros([COLUMNS], tl.float32)
    for share in range(0, SHARES):
        total += tl.load(parts + (share * num_rows + row) * num_out + columns, mask=is_column, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * num_out + columns, total.to(out.dtype.element_ty), mask=is_column)


def few_rows_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: FewRowsShape, *, has_pdl: bool = False
) -> Tensor:
    """``x @ weight.T + bias`` [rows, out] of ``x`` [rows, in], at most ``MAX_ROWS`` rows, and ``weight`` [out, in].

    ``has_pdl``: launched as ``dependent_launch`` says.
    """
    num_rows, (num_out, num_in) = x.shape[0], weight.shape
    assert 0 < num_rows <= MAX_ROWS
    out, is_split = x.new_empty(num_rows, num_out), shape.shares > 1
    parts = torch.empty(shape.shares, num_rows, num_out, dtype=torch.float32, device=x.device) if is_split else out
    _products_kernel[(triton.cdiv(num_out, shape.columns), shape.shares)](
        parts,
        x,
        weight,
        weight if bias is None else bias,
        num_rows,
        num_in,
        num_out,
        HAS_BIAS=bias is not None and not is_split,
        SHARES=shape.shares,
        ROWS=max(LEAST_ROWS, triton.next_power_of_2(num_rows)),
        COLUMNS=shape.columns,
        STEP=shape.step,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        **launch_options(has_pdl),
    )
    if is_split:
        _joined_kernel[(num_rows, triton.cdiv(num_out, JOINED_COLUMNS))](
            out, parts, weight if bias is None else bias, num_rows, num_out, HAS_BIAS=bias is not None,
            SHARES=shape.shares, COLUMNS=JOINED_COLUMNS, num_warps=4, **launch_options(has_pdl),
        )  # fmt: skip
    return out
