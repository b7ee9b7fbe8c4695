"""Joins what the parts of a split context came to: of one query each, or in the fixed order of exact mode."""

import triton
import triton.language as tl

from stratos.engine.triton_kernels.dependent_launch import wait_for_previous


@triton.jit
def merge_kernel(
    out,
    part_acc,
    part_stats,
    query_blocks,
    query_begins,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (query blocks, heads): join the parts of one head of a block of one query."""
    if HAS_PDL:
        wait_for_previous()
    block, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(query_begins + tl.load(query_blocks + 2 * block))
    place = begin.to(tl.int64) * NUM_HEADS + head
    parts, dims = tl.arange(0, NUM_PARTS), tl.arange(0, DIM_PADDED)
    slots = (block.to(tl.int64) * NUM_HEADS + head) * NUM_PARTS + parts
    best = tl.load(part_stats + slots * 2)
    total = tl.load(part_stats + slots * 2 + 1)
    is_summed = total > 0.0
    top = tl.max(best, 0)
    share = tl.where(is_summed, tl.exp2(best - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    is_loaded = is_summed[:, None] & (dims < DIM)[None, :]
    acc = tl.load(part_acc + slots[:, None] * DIM + dims[None, :], mask=is_loaded, other=0.0)
    norm = tl.sum(total * share, 0)
    result = tl.sum(acc * share[:, None], 0) / tl.where(norm > 0.0, norm, 1.0)
    tl.store(out + place * DIM + dims, result.to(out.dtype.element_ty), mask=dims < DIM)


@triton.jit
def merge_items_kernel(
    out,
    part_acc,
    part_stats,
    items,
    query_begins,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (items that may be of several parts, heads): the first item of a context joins all of its parts."""
    if HAS_PDL:
        wait_for_previous()
    item, head = tl.program_id(0), tl.program_id(1)
    num_parts = tl.load(items + 4 * item + 2)
    if (tl.load(items + 4 * item + 1) == 0) & (num_parts > 1):
        begin = tl.load(query_begins + tl.load(items + 4 * item))
        parts, dims = tl.arange(0, MAX_PARTS), tl.arange(0, DIM_PADDED)
        is_part = parts < num_parts
        slots = (item + parts).to(tl.int64) * NUM_HEADS + head
        best = tl.load(part_stats + slots * 2, mask=is_part, other=float("-inf"))
        total = tl.load(part_stats + slots * 2 + 1, mask=is_part, other=0.0)
        is_summed = total > 0.0
        top = tl.max(best, 0)
        share = tl.where(is_summed, tl.exp2(best - tl.where(top == float("-inf"), 0.0, top)), 0.0)
        is_loaded = is_summed[:, None] & (dims < DIM)[None, :]
        acc = tl.load(part_acc + slots[:, None] * DIM + dims[None, :], mask=is_loaded, other=0.0)
        norm = tl.sum(total * share, 0)
        result = tl.sum(acc * share[:, None], 0) / tl.where(norm > 0.0, norm, 1.0)
        place = begin.to(tl.int64) * NUM_HEADS + head
        tl.store(out + place * DIM + dims, result.to(out.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize=["num_parts", "first_token"])
def exact_merge_kernel(
    out,
    part_acc,
    part_stats,
    num_parts,
    first_token,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    """Grid (tokens, heads): join parts in their order; one without tokens multiplies by 1 and adds 0."""
    token, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, DIM_PADDED)
    best = tl.full([DIM_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([DIM_PADDED], tl.float32)
    acc = tl.zeros([DIM_PADDED], tl.float32)
    first_slot = (token.to(tl.int64) * NUM_HEADS + head) * num_parts
    for part in range(0, num_parts):
        slot = first_slot + part
        part_best = tl.load(part_stats + slot * 2 + dims * 0)  # the same in every lane, like all that follows from it
        part_total = tl.load(part_stats + slot * 2 + 1 + dims * 0)
        new_best = tl.maximum(best, part_best)
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        shrink = tl.exp2(best - base)
        share = tl.where(part_total > 0.0, tl.exp2(part_best - base), 0.0)
        sums = tl.load(part_acc + slot * DIM + dims, mask=(dims < DIM) & (part_total > 0.0), other=0.0)
        acc = acc * shrink + sums * share
        total = total * shrink + part_total * share
        best = new_best
    place = (first_token + token).to(tl.int64) * NUM_HEADS + head
    result = acc / tl.where(total > 0.0, total, 1.0)
    tl.store(out + place * DIM + dims, result.to(out.dtype.element_ty), mask=dims < DIM)
