"""Paged attention over pages ``[block, layer, 2 (K, V), kv_head, token in block, head_dim]``: one kernel, three uses.

A program takes a block of queries of one row, together with all query heads of one KV head, as the rows of a matrix
(``GROUP`` heads, padded to a power of two), walks its part of the context in tiles of ``TILE`` tokens by online
softmax, and writes the result, or, when the context is split, a partial result that a kernel of ``merging`` joins.

- decode: one query, so the matrix is the heads of a group; contexts are split over programs to fill the GPU, each into
  as many parts as its length asks for (``items``), or all into equally many.
- prefill: many queries in one large matrix (warp-group products), no split; only tiles at the diagonal are masked.
- exact: one shape for everything, parts of ``EXACT_SPLIT`` tokens and tiles by absolute position, all masked alike,
  parts joined from the first to the last.  A row of a product does not depend on the others, and neither a masked tile
  nor an empty part changes a bit: so a token's result depends neither on the batch nor on its chunk.

The grid depends on sizes of buffers alone, so a launch can be captured in a CUDA graph; rows without a context write
zeros.  Pages in fp8 are widened before each product; their scales are applied to the scores and to the result.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.dependent_launch import launch_options, wait_for_previous
from stratos.engine.triton_kernels.merging import exact_merge_kernel, merge_items_kernel, merge_kernel

LOG2_E = 1.4426950408889634
EXACT_SPLIT = 512
"""Tokens of a part in exact mode; a multiple of every tile."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """How one program is laid out."""

    rows: int
    """Queries times padded heads of a group."""
    tile: int
    """Tokens of the context per step."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """The rows of one launch; all int32, shapes by the size of the buffers."""

    query_blocks: Tensor
    """[blocks, 2]: row, and index within the row of the first query of the block."""
    query_begins: Tensor
    """[rows]: place of the row's first query in the flat batch."""
    query_counts: Tensor
    """[rows]."""
    contexts: Tensor
    """[rows]: tokens that the row's last query sees, itself included; 0 for a padding row."""
    block_tables: Tensor
    """[rows, width]; entries beyond the context are never followed."""
    items: Tensor | None = None
    """[items, 4] of ``ContextParts``: what each program takes, in the place of ``query_blocks``."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Scratch of a split launch; lives as long as a graph that was captured with it."""

    count: int
    """Parts per context, a power of two; of items: the most that a context may have."""
    acc: Tensor
    """float32 [query blocks, heads, count, head_dim]; of items: [items with several parts, heads, head_dim]."""
    stats: Tensor
    """float32, likewise, with 2 in the place of head_dim: maximum, and sum of weights."""


@dataclass(frozen=True, slots=True)
class ExactSlice:
    """Rows of one exact launch: some query blocks, whose queries follow one another in the flat batch."""

    first_block: int
    num_blocks: int
    first_token: int
    num_tokens: int
    num_parts: int
    """At least as many as the longest context has; more change nothing."""
    acc: Tensor
    """float32, at least [num_tokens, heads, num_parts, head_dim]."""
    stats: Tensor
    """float32, at least [num_tokens, heads, num_parts, 2]."""


@triton.jit
def _attend_tile(
    tile,
    queries,
    best,
    total,
    acc,
    table,
    keys,
    values,
    context,
    positions,
    is_query,
    scale,
    BLOCK: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """One tile of online softmax: scores, new maximum, rescaled sums."""
    tokens = tile + tl.arange(0, TILE)
    dims = tl.arange(0, DIM_PADDED)
    if IS_MASKED:
        is_token = tokens < context
        blocks = tl.load(table + tokens // BLOCK, mask=is_token, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + tokens // BLOCK).to(tl.int64)
    places = blocks * STRIDE_BLOCK + (tokens % BLOCK) * DIM
    if IS_MASKED:
        is_loaded = is_token[:, None] & (dims < DIM)[None, :]
        key = tl.load(keys + places[:, None] + dims[None, :], mask=is_loaded, other=0.0)
        value = tl.load(values + places[:, None] + dims[None, :], mask=is_loaded, other=0.0)
    elif DIM == DIM_PADDED:
        key = tl.load(keys + places[:, None] + dims[None, :])
        value = tl.load(values + places[:, None] + dims[None, :])
    else:
        key = tl.load(keys + places[:, None] + dims[None, :], mask=(dims < DIM)[None, :], other=0.0)
        value = tl.load(values + places[:, None] + dims[None, :], mask=(dims < DIM)[None, :], other=0.0)
    key, value = key.to(queries.dtype), value.to(queries.dtype)
    scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
    if IS_MASKED:
        is_seen = is_query[:, None] & (tokens[None, :] <= positions[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (tokens[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    # a row that has seen nothing yet keeps a maximum of -inf; 0 in its place avoids inf - inf
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return new_best, total, acc


@triton.jit(do_not_specialize=["num_parts", "table_width", "first_block", "first_token"])
def _attention_kernel(
    out,
    part_acc,
    part_stats,
    queries,
    layer_pages,
    kv_scales,
    query_blocks,
    query_begins,
    query_counts,
    contexts,
    block_tables,
    scale_log2,
    num_parts,
    table_width,
    first_block,
    first_token,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    HAS_ITEMS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    EXACT_SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (query blocks, KV heads, parts), or (items, KV heads, 1) where ``query_blocks`` holds items.

    ``EXACT_SPLIT``: tokens of a part, or 0 for equal parts.
    """
    if HAS_PDL:
        wait_for_previous()
    IS_EXACT: tl.constexpr = EXACT_SPLIT > 0
    block, kv_head, part = first_block + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if HAS_ITEMS:
        row, part = tl.load(query_blocks + 4 * block), tl.load(query_blocks + 4 * block + 1)
        num_parts, first_query = tl.load(query_blocks + 4 * block + 2), 0
        # an item that is not needed has no parts: it reads nothing and writes nothing
        context = tl.load(contexts + row, mask=num_parts > 0, other=0)
    else:
        row = tl.load(query_blocks + 2 * block)
        first_query = tl.load(query_blocks + 2 * block + 1)
        context = tl.load(contexts + row)
    num_queries = tl.load(query_counts + row)
    begin = tl.load(query_begins + row)

    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PADDED)
    query = first_query + lanes // GROUP_PADDED
    head = lanes % GROUP_PADDED
    is_query = (query < num_queries) & (head < GROUP) & (context > 0)
    positions = context - num_queries + query
    places = (begin + query).to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + head
    is_element = is_query[:, None] & (dims < DIM)[None, :]
    q = tl.load(queries + places[:, None] * DIM + dims[None, :], mask=is_element, other=0.0)
    if HAS_SCALES and queries.dtype.element_ty == tl.bfloat16:
        # e4m3 becomes float16 in one instruction, bfloat16 in several
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)

    # tokens that some query of the block sees
    low = context - num_queries + first_query
    high = tl.minimum(low + ROWS // GROUP_PADDED, context)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(low - WINDOW + 1, 0) // TILE * TILE
    stop = high
    if IS_EXACT:
        start = tl.maximum(start, part * EXACT_SPLIT)
        stop = tl.minimum(high, (part + 1) * EXACT_SPLIT)
    elif HAS_PARTS:
        part_tokens = tl.cdiv(tl.cdiv(high - start, TILE), tl.maximum(num_parts, 1)) * TILE
        stop = tl.minimum(high, start + (part + 1) * part_tokens)
        start = start + part * part_tokens

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    table = block_tables + row.to(tl.int64) * table_width
    keys = layer_pages + kv_head * (BLOCK * DIM)
    values = keys + NUM_KV_HEADS * BLOCK * DIM
    scale = scale_log2
    if HAS_SCALES:
        scale = scale * tl.load(kv_scales + kv_head)
    if not IS_EXACT and WINDOW == 0:
        # every query of the block sees all of these tokens
        whole = tl.maximum(start, tl.minimum(stop, low + 1) // TILE * TILE)
        for tile in range(start, whole, TILE):
            best, total, acc = _attend_tile(
                tile, q, best, total, acc, table, keys, values, context, positions, is_query, scale,
                BLOCK, STRIDE_BLOCK, DIM, DIM_PADDED, TILE, WINDOW, False,
            )  # fmt: skip
        start = whole
    for tile in range(start, stop, TILE):
        best, total, acc = _attend_tile(
            tile, q, best, total, acc, table, keys, values, context, positions, is_query, scale,
            BLOCK, STRIDE_BLOCK, DIM, DIM_PADDED, TILE, WINDOW, True,
        )  # fmt: skip

    if HAS_SCALES:
        acc = acc * tl.load(kv_scales + NUM_KV_HEADS + kv_head)
    is_written = (query < tl.maximum(num_queries, 1)) & (head < GROUP)
    if HAS_ITEMS:
        slots = (block * NUM_KV_HEADS + kv_head).to(tl.int64) * GROUP + head
        is_partial = is_written & (num_parts > 1)
        tl.store(part_stats + slots * 2, best, mask=is_partial)
        tl.store(part_stats + slots * 2 + 1, total, mask=is_partial)
        is_summed = is_element & (is_partial & (total > 0.0))[:, None]
        tl.store(part_acc + slots[:, None] * DIM + dims[None, :], acc, mask=is_summed)
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            out + places[:, None] * DIM + dims[None, :],
            result.to(out.dtype.element_ty),
            mask=(is_written & (num_parts == 1))[:, None] & (dims < DIM)[None, :],
        )
    elif HAS_PARTS:
        slots = ((block * NUM_KV_HEADS + kv_head).to(tl.int64) * GROUP + head) * num_parts + part
        if IS_EXACT:
            slots = (places - first_token * (NUM_KV_HEADS * GROUP)) * num_parts + part
        tl.store(part_stats + slots * 2, best, mask=is_written)
        tl.store(part_stats + slots * 2 + 1, total, mask=is_written)
        # a part without tokens leaves its sums alone, and the merge does not read them
        is_summed = is_element & (total > 0.0)[:, None]
        tl.store(part_acc + slots[:, None] * DIM + dims[None, :], acc, mask=is_summed)
    else:
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            out + places[:, None] * DIM + dims[None, :],
            result.to(out.dtype.element_ty),
            mask=is_written[:, None] & (dims < DIM)[None, :],
        )


def attend(
    out: Tensor,
    queries: Tensor,
    layer_pages: Tensor,
    rows: AttentionRows,
    *,
    scale: float,
    window: int | None,
    shape: TileShape,
    parts: Parts | None = None,
    kv_scales: Tensor | None = None,
    exact: ExactSlice | None = None,
    has_pdl: bool = False,
) -> None:
    """Attend causally over the pages.

    Args:
        out: [tokens, heads, head_dim], written where ``rows`` has queries, zeros for a padding row's first place.
        queries: [tokens, heads, head_dim], rotated.
        layer_pages: view [blocks, 2, kv_heads, block, head_dim] of one layer of the pool.
        rows: queries, contexts and block tables of the launch.
        scale: of the scores.
        window: tokens that a token sees, itself included; ``None`` for all before it.
        shape: of a program; ``rows`` at least the padded group.
        parts: split every context; rows have one query each.
        kv_scales: float32 [2, kv_heads] for pages in fp8.
        exact: fix the order of every sum; needs ``parts=None`` and one ``shape`` for all launches.
        has_pdl: launched as ``dependent_launch`` says; not in exact mode.
    """
    assert exact is None or not has_pdl
    num_kv_heads, block, dim = layer_pages.shape[2:]
    group = queries.shape[1] // num_kv_heads
    dim_padded = max(16, triton.next_power_of_2(dim))
    scratch = parts or exact
    table = rows.query_blocks if rows.items is None else rows.items
    has_parts = rows.items is None and scratch is not None
    count = exact.num_parts if exact else parts.count if parts and has_parts else 1
    _attention_kernel[(exact.num_blocks if exact else table.shape[0], num_kv_heads, count)](
        out,
        scratch.acc if scratch else out,
        scratch.stats if scratch else out,
        queries,
        layer_pages,
        layer_pages if kv_scales is None else kv_scales,
        table,
        rows.query_begins,
        rows.query_counts,
        rows.contexts,
        rows.block_tables,
        scale * LOG2_E,
        count,
        rows.block_tables.stride(0),
        exact.first_block if exact else 0,
        exact.first_token if exact else 0,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        GROUP_PADDED=triton.next_power_of_2(group),
        BLOCK=block,
        DIM=dim,
        DIM_PADDED=dim_padded,
        STRIDE_BLOCK=layer_pages.stride(0),
        WINDOW=window or 0,
        HAS_PARTS=scratch is not None,
        HAS_ITEMS=rows.items is not None,
        HAS_SCALES=kv_scales is not None,
        EXACT_SPLIT=EXACT_SPLIT if exact else 0,
        ROWS=shape.rows,
        TILE=shape.tile,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        **launch_options(has_pdl),
    )
    if exact is not None:
        exact_merge_kernel[(exact.num_tokens, queries.shape[1])](
            out,
            exact.acc,
            exact.stats,
            count,
            exact.first_token,
            NUM_HEADS=queries.shape[1],
            DIM=dim,
            DIM_PADDED=dim_padded,
            num_warps=4,
        )
    if parts is not None and rows.items is not None:
        merge_items_kernel[(parts.acc.shape[0], queries.shape[1])](
            out,
            parts.acc,
            parts.stats,
            rows.items,
            rows.query_begins,
            NUM_HEADS=queries.shape[1],
            DIM=dim,
            DIM_PADDED=dim_padded,
            MAX_PARTS=parts.count,
            num_warps=4,
            **launch_options(has_pdl),
        )
    elif parts is not None:
        merge_kernel[(rows.query_blocks.shape[0], queries.shape[1])](
            out,
            parts.acc,
            parts.stats,
            rows.query_blocks,
            rows.query_begins,
            NUM_HEADS=queries.shape[1],
            DIM=dim,
            DIM_PADDED=dim_padded,
            NUM_PARTS=count,
            num_warps=4,
            **launch_options(has_pdl),
        )
