"""Products of bytes: rows are cut to bytes, one scale each, and sums are integers of 32 bits, exact in any order.

A row x becomes round(x * (127 / m)), m the largest of |x|; a result is sum * (m / 127) * scale, as in ``integers.h``.
Of ``LLM_INT8`` elements whose size is ``OUTLIER`` or more are left out of that and multiplied as they are; their sum is
added before the scale of the weight.  All results of a row with NaN or infinity are no numbers, too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.checkpoint.weight_schemes import OUTLIER, LinearScheme
from stratos.engine.triton_kernels.codes.packing import PackedCodes
from stratos.engine.triton_kernels.codes.products import COLUMNS, rows_of, step_of, store_sums

BLOCK = 1024
"""Elements of a row that a program cuts at once."""
LEAST_OUTLIER = tl.constexpr(OUTLIER)
TO_INTEGER = tl.constexpr(12582912.0)
"""1.5 * 2^23: a float32 with it added has no fraction, rounded half to even."""


@triton.jit
def _cut_rows_kernel(codes, scales, x, num_in, HAS_OUTLIERS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, num_in, BLOCK):
        inputs = begin + tl.arange(0, BLOCK)
        sizes = tl.abs(tl.load(x + row * num_in + inputs, inputs < num_in, other=0.0).to(tl.float32))
        if HAS_OUTLIERS:  # infinity is one, and is multiplied as it is
            sizes = tl.where(sizes >= LEAST_OUTLIER, 0.0, sizes)
        largest = tl.where((sizes > largest) | (sizes != sizes), sizes, largest)
    is_bad = tl.max((largest != largest).to(tl.int32), 0) > 0
    most = tl.where(is_bad, float("nan"), tl.max(largest, 0))
    factor = tl.div_rn(127.0, tl.where(most > 0, most, 1.0))
    for begin in range(0, num_in, BLOCK):
        inputs = begin + tl.arange(0, BLOCK)
        elements = tl.load(x + row * num_in + inputs, inputs < num_in, other=0.0).to(tl.float32)
        if HAS_OUTLIERS:
            elements = tl.where(tl.abs(elements) >= LEAST_OUTLIER, 0.0, elements)
        rounded = elements * factor + TO_INTEGER - TO_INTEGER
        rounded = tl.where(tl.abs(rounded) <= 127.0, rounded, 0.0)  # of a row that is not finite
        tl.store(codes + row * num_in + inputs, rounded.to(tl.int8), inputs < num_in)
    tl.store(scales + row, tl.div_rn(most, 127.0))


@triton.jit
def byte_sums(
    x,
    row_codes,
    row_scales,
    places,
    is_row,
    codes,
    scales,
    columns,
    is_column,
    num_in,
    HAS_OUTLIERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """float32 [COLUMNS, ROWS] of the rows at ``places``."""
    total, others = tl.zeros([COLUMNS, ROWS], tl.int32), tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in range(0, num_in, STEP):
        inputs = begin + tl.arange(0, STEP)
        is_inside = is_row[:, None] & (inputs < num_in)[None, :]
        at = places[:, None] * num_in + inputs[None, :]
        is_weight = is_column[:, None] & (inputs < num_in)[None, :]
        left = tl.load(codes + columns.to(tl.int64)[:, None] * num_in + inputs[None, :], is_weight, other=0)
        total = tl.dot(left, tl.trans(tl.load(row_codes + at, is_inside, other=0)), total, out_dtype=tl.int32)
        if HAS_OUTLIERS:
            rows = tl.load(x + at, is_inside, other=0.0)
            rows = tl.where(tl.abs(rows) < LEAST_OUTLIER, 0.0, rows).to(x.dtype.element_ty)
            numbers = left.to(tl.float32).to(x.dtype.element_ty)
            others = tl.dot(numbers, tl.trans(rows), others, input_precision="ieee")
    sums = total.to(tl.float32) * tl.load(row_scales + places, is_row, other=0.0)[None, :]
    return (sums + others) * tl.load(scales + columns, is_column, other=0.0)[:, None]


@triton.jit(do_not_specialize=["num_rows"])
def _byte_codes_kernel(
    out,
    x,
    row_codes,
    row_scales,
    codes,
    scales,
    bias,
    num_rows,
    num_in,
    num_out,
    HAS_OUTLIERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_column, is_row, places = columns < num_out, rows < num_rows, rows.to(tl.int64)
    acc = byte_sums(
        x, row_codes, row_scales, places, is_row, codes, scales, columns, is_column, num_in,
        HAS_OUTLIERS, ROWS, COLUMNS, STEP,
    )  # fmt: skip
    store_sums(out, acc, bias, places, is_row, columns, is_column, num_out)


def cut_rows(x: Tensor, *, has_outliers: bool) -> tuple[Tensor, Tensor]:
    """Codes int8 [rows, inputs] and scales float32 [rows] of ``x``, contiguous; outliers become 0 in them."""
    codes, scales = torch.empty_like(x, dtype=torch.int8), x.new_empty(x.shape[0], dtype=torch.float32)
    _cut_rows_kernel[(x.shape[0],)](
        codes, scales, x, x.shape[1], HAS_OUTLIERS=has_outliers, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False
    )  # fmt: skip
    return codes, scales


def byte_codes_linear(x: Tensor, weight: PackedCodes, bias: Tensor | None, *, is_exact: bool) -> Tensor:
    """``x @ weight.T + bias`` of a weight in ``BYTE_ROWS``; arguments as of ``codes_linear``."""
    num_rows, (num_out, num_in) = x.shape[0], weight.shape
    out = x.new_empty(num_rows, num_out)
    if not num_rows:
        return out
    has_outliers = weight.scheme == LinearScheme.LLM_INT8
    row_codes, row_scales = cut_rows(x, has_outliers=has_outliers)
    rows = rows_of(num_rows, is_exact=is_exact)
    _byte_codes_kernel[(triton.cdiv(num_out, COLUMNS), triton.cdiv(num_rows, rows))](
        out, x, row_codes, row_scales, weight.codes, weight.scales, bias, num_rows, num_in, num_out,
        HAS_OUTLIERS=has_outliers, ROWS=rows, COLUMNS=COLUMNS, STEP=step_of(0, x.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
