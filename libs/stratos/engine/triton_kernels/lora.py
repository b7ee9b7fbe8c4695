"""Adapters of a whole step in two launches per fused linear layer, whatever adapters its rows use.

``out += B(A(x))`` for rows that are sorted by adapter and cut into segments of at most ``ROWS`` rows of one adapter.
A program finds the adapter of its segment in a table of addresses, so adapters lie where they were loaded (at whole
16 bytes, as every allocation does), each with ranks of its own, and a captured graph follows the table at each replay.

    shrink   per segment and share of the inputs: partial sums of ``A(x)``, [shares, rows, ranks] in float32
    expand   per segment and block of outputs: the shares added up in order, ``B`` of it, the bias, added into ``out``

A row's result depends on that row alone: a row of a matrix product does not depend on the others, and shares are fixed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
RANKS = 16
"""Ranks that a product takes at a time."""
STEP = 64
COLUMNS = 128
SHARES = 8
"""Shares of the inputs of ``shrink``: one adapter alone has to fill more than one multiprocessor."""
MAX_RANKS = 384
"""Most ranks of all targets of one fused layer together."""
MAX_TARGETS = 3
ENTRY = 4 + 4 * MAX_TARGETS
"""An entry of the table, int64: address of A, ranks of all targets, address of the bias or 0, one unused; then per
target the address of B or 0, its rank, its first rank in A, one unused."""


@triton.jit(do_not_specialize=["num_tokens", "slot_stride"])
def _shrink_kernel(
    shrunk,
    x,
    table,
    segments,
    num_tokens,
    slot_stride,
    IN: tl.constexpr,
    SHARES: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (segments, shares of the inputs)."""
    segment, share = tl.program_id(0), tl.program_id(1)
    slot, first = tl.load(segments + 4 * segment), tl.load(segments + 4 * segment + 1)
    count = tl.load(segments + 4 * segment + 2)
    if count > 0:
        entry = table + slot.to(tl.int64) * slot_stride
        weight = tl.multiple_of(tl.load(entry).to(tl.pointer_type(x.dtype.element_ty)), 16)
        num_ranks = tl.load(entry + 1).to(tl.int32)
        rows = tl.arange(0, ROWS)
        is_row = rows < count
        places = (first + rows).to(tl.int64)
        SHARE: tl.constexpr = (IN + SHARES * STEP - 1) // (SHARES * STEP) * STEP
        for first_rank in range(0, num_ranks, RANKS):
            ranks = first_rank + tl.arange(0, RANKS)
            acc = tl.zeros([ROWS, RANKS], tl.float32)
            for step in range(0, SHARE, STEP):
                inputs = share * SHARE + step + tl.arange(0, STEP)
                is_input = (inputs < IN)[None, :]
                left = tl.load(x + places[:, None] * IN + inputs[None, :], mask=is_row[:, None] & is_input, other=0.0)
                right = tl.load(
                    weight + ranks[:, None] * IN + inputs[None, :],
                    mask=(ranks < num_ranks)[:, None] & is_input,
                    other=0.0,
                )
                acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
            target = shrunk + (share.to(tl.int64) * num_tokens + places)[:, None] * MAX_RANKS + ranks[None, :]
            tl.store(target, acc, mask=is_row[:, None] & (ranks < num_ranks)[None, :])


@triton.jit(do_not_specialize=["num_tokens", "slot_stride"])
def _expand_kernel(
    out,
    shrunk,
    table,
    segments,
    num_tokens,
    slot_stride,
    OUT: tl.constexpr,
    END_0: tl.constexpr,
    END_1: tl.constexpr,
    NUM_TARGETS: tl.constexpr,
    SHARES: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (segments, blocks of outputs). Targets end at ``END_0``, ``END_1`` and ``OUT``."""
    segment, block = tl.program_id(0), tl.program_id(1)
    slot, first = tl.load(segments + 4 * segment), tl.load(segments + 4 * segment + 1)
    count = tl.load(segments + 4 * segment + 2)
    if count > 0:
        entry = table + slot.to(tl.int64) * slot_stride
        rows, columns = tl.arange(0, ROWS), block * COLUMNS + tl.arange(0, COLUMNS)
        is_row = rows < count
        places = (first + rows).to(tl.int64)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for target in tl.static_range(NUM_TARGETS):
            first_column = 0 if target == 0 else (END_0 if target == 1 else END_1)
            end_column = OUT if target == NUM_TARGETS - 1 else (END_0 if target == 0 else END_1)
            rank = tl.load(entry + 4 + 4 * target + 1).to(tl.int32)
            offset = tl.load(entry + 4 + 4 * target + 2).to(tl.int32)
            if (rank > 0) & (block * COLUMNS < end_column) & ((block + 1) * COLUMNS > first_column):
                weight = tl.load(entry + 4 + 4 * target).to(tl.pointer_type(out.dtype.element_ty))
                is_column = (columns >= first_column) & (columns < end_column)
                for first_rank in range(0, rank, RANKS):
                    ranks = first_rank + tl.arange(0, RANKS)
                    is_rank = ranks < rank
                    mask = is_row[:, None] & is_rank[None, :]
                    left = tl.zeros([ROWS, RANKS], tl.float32)
                    for share in range(0, SHARES):
                        source = (
                            (places + share * num_tokens.to(tl.int64))[:, None] * MAX_RANKS + offset + ranks[None, :]
                        )
                        left += tl.load(shrunk + source, mask=mask, other=0.0)
                    right = tl.load(
                        weight + (columns - first_column)[:, None] * rank + ranks[None, :],
                        mask=is_column[:, None] & is_rank[None, :],
                        other=0.0,
                    )
                    acc = tl.dot(left.to(right.dtype), tl.trans(right), acc, input_precision="ieee")
        bias = tl.load(entry + 2)
        if bias != 0:
            values = tl.load(bias.to(tl.pointer_type(out.dtype.element_ty)) + columns, mask=columns < OUT, other=0.0)
            acc += values.to(tl.float32)[None, :]
        mask = is_row[:, None] & (columns < OUT)[None, :]
        targets = out + places[:, None] * OUT + columns[None, :]
        base = tl.load(targets, mask=mask, other=0.0).to(tl.float32)
        tl.store(targets, (base + acc).to(out.dtype.element_ty), mask=mask)


def add_adapters(
    out: Tensor, x: Tensor, table: Tensor, segments: Tensor, ends: tuple[int, ...], shrunk: Tensor
) -> None:
    """Add adapters into the output of one fused linear layer, in place.

    Args:
        out: [tokens, out_features], contiguous.
        x: [tokens, in_features], contiguous, of the same type.
        table: int64 [slots, ENTRY], a view whose rows may lie apart.
        segments: int32 [segments, 4]: slot, first token, tokens (0 for a segment that is not needed), one unused.
        ends: where the outputs of each target end; the last is out_features.
        shrunk: float32, at least [SHARES, tokens, MAX_RANKS]: scratch.
    """
    num_tokens, num_out = out.shape
    sizes = {"SHARES": SHARES, "MAX_RANKS": MAX_RANKS, "ROWS": ROWS, "RANKS": RANKS}
    num_segments = segments.shape[0]
    _shrink_kernel[(num_segments, SHARES)](
        shrunk, x, table, segments, num_tokens, table.stride(0), IN=x.shape[1], STEP=STEP, **sizes, num_warps=4
    )
    _expand_kernel[(num_segments, triton.cdiv(num_out, COLUMNS))](
        out, shrunk, table, segments, num_tokens, table.stride(0), OUT=num_out, END_0=ends[0],
        END_1=ends[min(1, len(ends) - 1)], NUM_TARGETS=len(ends), COLUMNS=COLUMNS, **sizes, num_warps=4,
    )  # fmt: skip


def scratch(num_tokens: int, device: torch.device) -> Tensor:
    """For ``add_adapters`` of so many tokens: float32 [SHARES, tokens, MAX_RANKS]."""
    return torch.empty(SHARES, num_tokens, MAX_RANKS, dtype=torch.float32, device=device)
