"""One product for all experts of a layer whose weights stay codes; groups and grid as of ``triton_kernels.experts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.checkpoint.weight_schemes import BYTE_ROWS, LinearScheme
from stratos.engine.triton_kernels.codes.byte_products import byte_sums, cut_rows
from stratos.engine.triton_kernels.codes.packing import PackedCodes
from stratos.engine.triton_kernels.codes.products import COLUMNS, code_sums, step_of, store_sums
from stratos.engine.triton_kernels.experts import blocks_for, expert_of_block, pairs_of_block

ADDRESSES = 3
"""Of codes, scales and parts."""
FIELDS = tl.constexpr(ADDRESSES)


@triton.jit
def _expert_codes_kernel(
    out,
    x,
    row_codes,
    row_scales,
    addresses,
    table,
    begins,
    order,
    num_in,
    num_out,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    HAS_OUTLIERS: tl.constexpr,
    SCHEME: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows). ``row_codes`` is ``None`` where rows are multiplied as they are."""
    expert, first, end = expert_of_block(begins, tl.program_id(1), NUM_EXPERTS, EXPERTS_PADDED, ROWS)
    if expert < NUM_EXPERTS:
        pairs, is_pair, places = pairs_of_block(order, first, end, NUM_CHOSEN, ROWS)
        columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        is_column, own = columns < num_out, addresses + expert * FIELDS
        codes = tl.multiple_of(tl.load(own).to(tl.pointer_type(CODES)), 16)
        scales = tl.multiple_of(tl.load(own + 1).to(tl.pointer_type(SCALES)), 16)
        parts = None
        if HAS_PARTS:
            parts = tl.multiple_of(tl.load(own + 2).to(tl.pointer_type(tl.uint8)), 16)
        if row_codes is not None:
            acc = byte_sums(
                x, row_codes, row_scales, places, is_pair, codes, scales, columns, is_column, num_in,
                HAS_OUTLIERS, ROWS, COLUMNS, STEP,
            )  # fmt: skip
        else:
            acc = code_sums(
                x, places, is_pair, codes, scales, parts, table, columns, is_column, num_in, num_out,
                SCHEME, GROUP, ROWS, COLUMNS, STEP,
            )  # fmt: skip
        store_sums(out, acc, None, pairs.to(tl.int64), is_pair, columns, is_column, num_out)


@dataclass(frozen=True, slots=True)
class ExpertCodes:
    """Addresses of the weights of one layer's experts, which keep them."""

    addresses: Tensor
    """int64 [experts, 3]."""
    first: PackedCodes
    """Weight of one expert: the others have its variant."""

    @classmethod
    def of(cls, weights: Sequence[PackedCodes]) -> ExpertCodes:
        """Addresses of ``weights``, in their order."""
        rows = [[0 if t is None else t.data_ptr() for t in (w.codes, w.scales, w.parts)] for w in weights]
        return cls(torch.tensor(rows, dtype=torch.int64).to(weights[0].codes.device), weights[0])


def expert_codes_linear(
    x: Tensor, experts: ExpertCodes, begins: Tensor, order: Tensor | None = None, num_chosen: int = 0
) -> Tensor:
    """``x @ weight[expert].T`` of weights that stay codes; arguments as of ``experts_linear``."""
    weight, (num_out, num_in) = experts.first, experts.first.shape
    num_pairs, num_experts = x.shape[0] if order is None else order.shape[0], experts.addresses.shape[0]
    out = x.new_empty(num_pairs, num_out)
    if not num_pairs:
        return out
    has_outliers = weight.scheme == LinearScheme.LLM_INT8
    row_codes, row_scales = cut_rows(x, has_outliers=has_outliers) if weight.scheme in BYTE_ROWS else (None, None)
    rows, num_blocks = blocks_for(num_pairs, num_experts)
    _expert_codes_kernel[(triton.cdiv(num_out, COLUMNS), num_blocks)](
        out, x, row_codes, row_scales, experts.addresses, weight.table, begins,
        experts.addresses if order is None else order, num_in, num_out,
        CODES=tl.int8 if weight.codes.dtype == torch.int8 else tl.uint8,
        SCALES=tl.uint8 if weight.scales.dtype == torch.uint8 else tl.float32,
        HAS_PARTS=weight.parts is not None, HAS_OUTLIERS=has_outliers, SCHEME=int(weight.scheme), GROUP=weight.group,
        NUM_EXPERTS=num_experts, EXPERTS_PADDED=triton.next_power_of_2(num_experts),
        NUM_CHOSEN=0 if order is None else num_chosen, ROWS=rows, COLUMNS=COLUMNS,
        STEP=step_of(weight.group, x.dtype), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
