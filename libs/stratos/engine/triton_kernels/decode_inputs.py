"""The inputs of a decode step from what the host sent: one program a row, and the row's new block-table entries.

The launch reads and writes fixed buffers alone, so it can be the first node of a captured step.  A program reads only
what no other program of the launch writes: its own row of the tables, and of that row only entries that are not new.
"""

import triton
import triton.language as tl
from torch import Tensor

NUM_FIELDS = 6
"""Fields: row of the tables, token or ``PREVIOUS``, position, first new entry, new entries, where they begin."""
PREVIOUS = tl.constexpr(-1)
"""The token that the step before sampled."""
ENTRIES = 512


@triton.jit
def _decode_inputs_kernel(
    fields,
    values,
    last_tokens,
    block_tables,
    contexts,
    begins,
    query_blocks,
    slots,
    positions,
    token_ids,
    places,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """Grid (rows of the batch,)."""
    row = tl.program_id(0)
    place = tl.load(fields + row)
    token = tl.load(fields + STRIDE + row).to(tl.int64)
    position = tl.load(fields + 2 * STRIDE + row)
    first = tl.load(fields + 3 * STRIDE + row)
    count = tl.load(fields + 4 * STRIDE + row)
    new = values + tl.load(fields + 5 * STRIDE + row)
    is_real = place < CAPACITY
    table = block_tables + place.to(tl.int64) * WIDTH

    # block 5 of a table whose entries from 4 on are new is the second new one; block 3 is in the table already
    entry = position // BLOCK
    is_new = entry >= first
    block = tl.load(new + entry - first, mask=is_real & is_new & (count > 0), other=0)
    block += tl.load(table + entry, mask=is_real & ((entry < first) | (count == 0)), other=0)
    tl.store(slots + row, tl.where(is_real, block * BLOCK + position % BLOCK, -1))
    previous = tl.load(last_tokens + place, mask=token == PREVIOUS, other=0)
    tl.store(token_ids + row, tl.where(token == PREVIOUS, previous, token))
    tl.store(positions + row, position.to(tl.int64))
    tl.store(places + row, place.to(tl.int64))
    tl.store(query_blocks + 2 * row, place)
    tl.store(contexts + place, tl.where(is_real, position + 1, 0))
    tl.store(begins + place, row)
    offsets = tl.arange(0, ENTRIES)
    for begin in range(0, count, ENTRIES):
        is_entry = begin + offsets < count
        entries = tl.load(new + begin + offsets, mask=is_entry, other=0)
        tl.store(table + first + begin + offsets, entries, mask=is_entry)


def decode_inputs(
    num_rows: int,
    fields: Tensor,
    values: Tensor,
    last_tokens: Tensor,
    block_tables: Tensor,
    contexts: Tensor,
    begins: Tensor,
    query_blocks: Tensor,
    slots: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    places: Tensor,
    *,
    capacity: int,
    block_size: int,
) -> None:
    """Write the inputs of a step of ``num_rows``.

    Args:
        num_rows: of the batch, padding included.
        fields: int32 [NUM_FIELDS, batch].
        values: int32, new entries of block tables.
        last_tokens: int64 [rows of the tables].
        block_tables: int32 [rows of the tables, width], written.
        contexts: int32 [rows of the tables], written, as ``begins``.
        begins: place of each row's token.
        query_blocks: int32 [batch, 2], first column written.
        slots: int32 [batch], written, as the rest.
        positions: int64 [batch].
        token_ids: int64 [batch].
        places: int64 [batch], rows of the tables.
        capacity: rows of the tables from there on are padding.
        block_size: tokens of a KV block.
    """
    _decode_inputs_kernel[(num_rows,)](
        fields,
        values,
        last_tokens,
        block_tables,
        contexts,
        begins,
        query_blocks,
        slots,
        positions,
        token_ids,
        places,
        STRIDE=fields.shape[1],
        WIDTH=block_tables.shape[1],
        CAPACITY=capacity,
        BLOCK=block_size,
        ENTRIES=ENTRIES,
        num_warps=4,
    )
