"""Weight-only products: codes are widened inside the product, and scales multiply its sums.

One group of all inputs has one sum, multiplied at the end.  Smaller groups are cut into steps of at most 128 inputs:
the sum of each is multiplied and added.  So the order of adding follows from scheme, group and compute type alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.codes.packing import PackedCodes
from stratos.engine.triton_kernels.codes.widening import MXFP4, numbers_of, power_of_two

COLUMNS, FEW_ROWS, MANY_ROWS = 64, 16, 64
"""Of a program; decode steps have few rows, all others and exact mode many."""
MOST_INPUTS, FLOAT32_INPUTS = 128, 32
"""Of a step."""


@triton.jit
def scale_of(scales, group, columns, is_column, num_out, SCHEME: tl.constexpr):
    """float32 [columns]: scales of one group."""
    found = tl.load(scales + group * num_out + columns, is_column, other=0)
    if SCHEME == MXFP4:
        found = power_of_two(found)
    return found


@triton.jit
def code_sums(
    x,
    places,
    is_row,
    codes,
    scales,
    parts,
    table,
    columns,
    is_column,
    num_in,
    num_out,
    SCHEME: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """float32 [COLUMNS, ROWS] of the rows of ``x`` at ``places``."""
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    for begin in range(0, num_in, STEP):
        inputs = begin + tl.arange(0, STEP)
        is_inside = is_row[:, None] & (inputs < num_in)[None, :]
        rows = tl.load(x + places[:, None] * num_in + inputs[None, :], is_inside, other=0.0)
        numbers = numbers_of(
            codes, parts, table, columns, is_column, begin, num_in, num_out, SCHEME, GROUP, COLUMNS, STEP, dtype
        )
        if GROUP > 0:
            of_step = tl.dot(numbers, tl.trans(rows), input_precision="ieee")
            scale = scale_of(scales, begin // GROUP, columns, is_column, num_out, SCHEME)
            acc += of_step * scale[:, None]
        else:
            acc = tl.dot(numbers, tl.trans(rows), acc, input_precision="ieee")
    if GROUP == 0:
        acc *= scale_of(scales, 0, columns, is_column, num_out, SCHEME)[:, None]
    return acc


@triton.jit
def store_sums(out, acc, bias, places, is_row, columns, is_column, num_out):
    """Write [COLUMNS, ROWS] of sums, and a bias beyond them, to the rows at ``places``."""
    if bias is not None:
        acc += tl.load(bias + columns, is_column, other=0.0).to(tl.float32)[:, None]
    to = out + places[:, None] * num_out + columns[None, :]
    tl.store(to, tl.trans(acc).to(out.dtype.element_ty), is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _codes_kernel(
    out,
    x,
    codes,
    scales,
    parts,
    table,
    bias,
    num_rows,
    num_in,
    num_out,
    SCHEME: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_column, is_row, places = columns < num_out, rows < num_rows, rows.to(tl.int64)
    acc = code_sums(
        x, places, is_row, codes, scales, parts, table, columns, is_column, num_in, num_out,
        SCHEME, GROUP, ROWS, COLUMNS, STEP,
    )  # fmt: skip
    store_sums(out, acc, bias, places, is_row, columns, is_column, num_out)


def step_of(group: int, dtype: torch.dtype) -> int:
    """Inputs of a step: a power of two that no group ends within."""
    most = FLOAT32_INPUTS if dtype == torch.float32 else MOST_INPUTS
    return most if not group else min(most, group & -group)


def rows_of(num_rows: int, *, is_exact: bool) -> int:
    """Rows of a program."""
    return FEW_ROWS if num_rows <= FEW_ROWS and not is_exact else MANY_ROWS


def codes_linear(x: Tensor, weight: PackedCodes, bias: Tensor | None, *, is_exact: bool) -> Tensor:
    """``x @ weight.T + bias`` [rows, outputs] of ``x`` [rows, inputs], contiguous.

    ``is_exact``: by one program shape for every number of rows.
    """
    num_rows, (num_out, num_in) = x.shape[0], weight.shape
    out = x.new_empty(num_rows, num_out)
    if not num_rows:
        return out
    rows = rows_of(num_rows, is_exact=is_exact)
    _codes_kernel[(triton.cdiv(num_out, COLUMNS), triton.cdiv(num_rows, rows))](
        out, x, weight.codes, weight.scales, weight.parts, weight.table, bias, num_rows, num_in, num_out,
        SCHEME=int(weight.scheme), GROUP=weight.group, ROWS=rows, COLUMNS=COLUMNS,
        STEP=step_of(weight.group, x.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
