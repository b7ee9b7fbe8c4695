"""KV between pages and the wire's layout, in one pass over memory, with the checksum of what was copied.

A program copies ``TOKENS`` tokens of one layer, K or V, and head; it sees words of 64 bits and no numbers.  The
checksum is taken from the registers that are written, so it is that of the copy even if the original changes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.core.device.checksum import FIRST, PLACE, SECOND, SHIFT

TOKENS_PER_PROGRAM = 32


@triton.jit
def _mix(value, FACTOR: tl.constexpr, BITS: tl.constexpr):
    return (value ^ (value >> BITS)) * FACTOR


@triton.jit(do_not_specialize=["first_token", "num_tokens", "num_lanes"])
def _kv_copy_kernel(
    pages,
    wire,
    sums,
    blocks,
    first_token,
    num_tokens,
    num_lanes,
    WORDS: tl.constexpr,
    WORDS_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    IS_PACK: tl.constexpr,
    HAS_SUM: tl.constexpr,
    PLACE_FACTOR: tl.constexpr,
    FIRST_FACTOR: tl.constexpr,
    SECOND_FACTOR: tl.constexpr,
    BITS: tl.constexpr,
):
    """Grid (blocks of tokens, layers * 2 * KV heads); ``pages`` and ``blocks`` begin at the first layer and block."""
    lane = tl.program_id(1)  # layer, K or V and head: their order is that of the wire, and of a page
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    words = tl.arange(0, WORDS_PADDED)
    is_token = tokens < num_tokens
    is_word = is_token[:, None] & (words < WORDS)[None, :]
    places = first_token + tokens
    block = tl.load(blocks + places // BLOCK, mask=is_token, other=0).to(tl.int64)
    in_pages = block * STRIDE_BLOCK + (lane * BLOCK + places % BLOCK) * WORDS
    on_wire = (lane.to(tl.int64) * num_tokens + tokens) * WORDS
    page = pages + in_pages[:, None] + words[None, :]
    run = wire + on_wire[:, None] + words[None, :]
    if IS_PACK:
        value = tl.load(page, mask=is_word, other=0)
        tl.store(run, value, mask=is_word)
    else:
        value = tl.load(run, mask=is_word, other=0)
        tl.store(page, value, mask=is_word)
    if HAS_SUM:
        number = (on_wire[:, None] + words[None, :] + 1).to(tl.uint64, bitcast=True)
        mixed = value.to(tl.uint64, bitcast=True) + number * PLACE_FACTOR
        mixed = _mix(_mix(mixed, FIRST_FACTOR, BITS), SECOND_FACTOR, BITS)
        mixed = (mixed ^ (mixed >> BITS)).to(tl.int64, bitcast=True)
        total = tl.sum(tl.sum(tl.where(is_word, mixed, 0), 1), 0)
        tl.store(sums + tl.program_id(0) * num_lanes + lane, total)


def copy_kv(
    pages: Tensor,
    blocks: Tensor,
    first_token: int,
    wire: Tensor,
    *,
    layer_begin: int,
    is_pack: bool,
    has_sum: bool = True,
) -> Tensor | None:
    """Copy a range of KV out of the pages (``is_pack``), or into them.

    Args:
        pages: int64 [blocks, layers, 2, kv_heads, block, words of a head's token], the pool as words.
        blocks: int32, table of the blocks that hold the range.
        first_token: place of the range's first token in the first of ``blocks``.
        wire: int64 [layers, 2, kv_heads, tokens, words], contiguous; may be another device's memory.
        layer_begin: first layer.
        is_pack: from pages to wire.
        has_sum: compute the sum of the mixed words.

    Returns:
        int64 [1], or ``None``; ``checksum.finish`` makes the checksum of it.
    """
    num_layers, _, heads, num_tokens, num_words = wire.shape
    lanes, size = num_layers * 2 * heads, pages.shape[4]
    grid = (triton.cdiv(num_tokens, TOKENS_PER_PROGRAM), lanes)
    sums = torch.empty(grid if has_sum else 1, dtype=torch.int64, device=pages.device)
    _kv_copy_kernel[grid](
        pages[:, layer_begin:],
        wire,
        sums,
        blocks,
        first_token,
        num_tokens,
        lanes,
        WORDS=num_words,
        WORDS_PADDED=triton.next_power_of_2(num_words),
        BLOCK=size,
        STRIDE_BLOCK=pages.stride(0),
        TOKENS=TOKENS_PER_PROGRAM,
        IS_PACK=is_pack,
        HAS_SUM=has_sum,
        PLACE_FACTOR=PLACE,
        FIRST_FACTOR=FIRST,
        SECOND_FACTOR=SECOND,
        BITS=SHIFT,
        num_warps=4,
    )
    return sums.sum().view(1) if has_sum else None
