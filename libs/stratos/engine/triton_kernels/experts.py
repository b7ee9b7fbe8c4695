"""One matrix product for all experts of a layer: rows grouped by expert, each group times its own expert's weight.

Where groups begin is on the device alone.  The grid has as many blocks of rows as any routing may need; a program finds
its expert from the groups' sizes and ends where there is none, so a launch can be captured whatever is routed where.
Weights lie where they were loaded: a program reads the address of its expert's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a program, for decode steps and for prompts."""
COLUMNS, STEP = 64, 64
FLOAT32_STEP = 32


@triton.jit
def expert_of_block(begins, block, NUM_EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Expert of a block of rows, its first pair and the end of the expert's; ``NUM_EXPERTS``: the block has none."""
    experts = tl.arange(0, EXPERTS_PADDED)
    is_expert = experts < NUM_EXPERTS
    first_pairs = tl.load(begins + experts, mask=is_expert, other=0)
    ends = tl.load(begins + experts + 1, mask=is_expert, other=0)
    blocks = tl.cdiv(ends - first_pairs, ROWS)
    last_blocks = tl.cumsum(blocks, 0)
    expert = tl.sum((is_expert & (last_blocks <= block)).to(tl.int32), 0)
    is_mine = experts == expert
    before = tl.sum(tl.where(is_mine, last_blocks - blocks, 0), 0)
    first = tl.sum(tl.where(is_mine, first_pairs, 0), 0) + (block - before) * ROWS
    return expert, first, tl.sum(tl.where(is_mine, ends, 0), 0)


@triton.jit
def pairs_of_block(order, first, end, NUM_CHOSEN: tl.constexpr, ROWS: tl.constexpr):
    """Pairs of a block from ``first`` on, which of them are the expert's, and the rows of ``x`` that they multiply."""
    pairs = first + tl.arange(0, ROWS)
    is_pair = pairs < end
    rows = pairs.to(tl.int64)
    if NUM_CHOSEN > 0:
        rows = tl.load(order + pairs, mask=is_pair, other=0) // NUM_CHOSEN
    return pairs, is_pair, rows


@triton.jit
def _experts_kernel(
    out,
    x,
    addresses,
    begins,
    order,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (blocks of columns, blocks of rows). ``NUM_CHOSEN``: pairs of a token of ``x``; 0: ``x`` is in order."""
    expert, first, end = expert_of_block(begins, tl.program_id(1), NUM_EXPERTS, EXPERTS_PADDED, ROWS)
    if expert < NUM_EXPERTS:
        pairs, is_pair, tokens = pairs_of_block(order, first, end, NUM_CHOSEN, ROWS)
        columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < OUT
        weight = tl.multiple_of(tl.load(addresses + expert).to(tl.pointer_type(x.dtype.element_ty)), 16)
        lefts = x + tokens[:, None] * IN
        rights = weight + columns.to(tl.int64)[:, None] * IN
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in range(0, IN, STEP):
            inputs = begin + tl.arange(0, STEP)
            is_input = (inputs < IN)[None, :]
            left = tl.load(lefts + inputs[None, :], mask=is_pair[:, None] & is_input, other=0.0)
            right = tl.load(rights + inputs[None, :], mask=is_column[:, None] & is_input, other=0.0)
            acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
        places = pairs.to(tl.int64)[:, None] * OUT + columns[None, :]
        tl.store(out + places, acc.to(out.dtype.element_ty), mask=is_pair[:, None] & is_column[None, :])


def least_pairs_of_many(num_experts: int) -> int:
    """Pairs of a token and an expert from which on programs take ``MANY_ROWS``."""
    return num_experts * MANY_ROWS // 2


def blocks_for(num_pairs: int, num_experts: int) -> tuple[int, int]:
    """Rows of a program, and how many blocks of rows any routing may need."""
    rows = MANY_ROWS if num_pairs >= least_pairs_of_many(num_experts) else FEW_ROWS
    # every expert may have one block that is not full
    return rows, min(num_pairs, num_pairs // rows + num_experts)


def experts_linear(
    x: Tensor, addresses: Tensor, begins: Tensor, num_out: int, order: Tensor | None = None, num_chosen: int = 0
) -> Tensor:
    """``x @ weight[expert].T`` of every pair of a token and an expert.

    Args:
        x: [tokens, in_features] with ``order``, else [pairs, in_features] sorted by expert; contiguous.
        addresses: int64 [experts], of weights [num_out, in_features] as ``x``, contiguous, at whole 16 bytes.
        begins: int64 [experts + 1]: where the pairs of each expert begin; the last is the number of pairs.
        num_out: features of the result.
        order: int64 [pairs]: token times ``num_chosen`` plus rank of each pair, sorted by expert.
        num_chosen: experts of a token.

    Returns:
        [pairs, num_out], sorted by expert.
    """
    num_pairs = x.shape[0] if order is None else order.shape[0]
    num_experts, num_in = addresses.shape[0], x.shape[1]
    out = x.new_empty(num_pairs, num_out)
    if not num_pairs:
        return out
    rows, num_blocks = blocks_for(num_pairs, num_experts)
    _experts_kernel[(triton.cdiv(num_out, COLUMNS), num_blocks)](
        out,
        x,
        addresses,
        begins,
        addresses if order is None else order,
        IN=num_in,
        OUT=num_out,
        NUM_EXPERTS=num_experts,
        EXPERTS_PADDED=triton.next_power_of_2(num_experts),
        NUM_CHOSEN=0 if order is None else num_chosen,
        ROWS=rows,
        COLUMNS=COLUMNS,
        STEP=FLOAT32_STEP if x.dtype == torch.float32 else STEP,
        num_warps=4,
        num_stages=4,
    )
    return out
