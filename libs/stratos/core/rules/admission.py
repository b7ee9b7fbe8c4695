"""The KV admission rule, which engines apply and routers apply to what engines report of themselves.

    taken + promised + table + output <= watermark * total

``table`` are the blocks that a request takes when it is admitted, ``output`` those that its choices are expected to
need: ``min(max_tokens, p90 output length so far)`` each, at least one block, and what they copy of the prompt.
``taken`` blocks are allocated, reserved or fenced; ``promised`` ones are expected by requests that were let in and are
not held yet.

A return, which emitted tokens before, must get back in: the whole pool, promises to others do not count, and of output
one block per choice.  An empty pool takes everything that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.requests.records import EngineRequest

KV_WATERMARK = 0.90
"""Default share of a KV pool that admission may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNeed:
    """Blocks that one request wants."""

    table_blocks: int
    output_blocks: int
    is_resumed: bool = False
    """It emitted tokens before, here or elsewhere, and not only in an answer that it goes on from."""

    @property
    def num_blocks(self) -> int:
        return self.table_blocks + self.output_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRoom:
    """Room that a pool has left, in blocks."""

    total: int
    taken: int = 0
    promised: int = 0
    watermark: float
    """Share of the pool that admission may fill."""


def output_blocks(
    max_tokens: int, p90_output_tokens: int, num_choices: int, block_size: int, *, is_resumed: bool
) -> int:
    """Blocks of output that ``num_choices`` choices of at most ``max_tokens`` tokens each are expected to need."""
    if is_resumed:
        return num_choices
    return num_choices * max(1, -(-min(max_tokens, p90_output_tokens) // block_size))


def max_output_tokens(request: EngineRequest) -> int:
    """Most output tokens that a choice may have yet."""
    emitted = (len(choice.emitted_ids) for choice in request.choices if not choice.finished)
    return request.sampling.max_tokens - min(emitted, default=0)


def copied_blocks(num_prompt_tokens: int, num_choices: int, block_size: int) -> int:
    """Blocks that choices after the first one copy, because they write into the prompt's last block; 0 if it is full.

    The last token of a prompt is computed by each choice: 9 tokens in blocks of 4 leave 8 to share, and none to copy.
    """
    return num_choices - 1 if num_choices > 1 and (num_prompt_tokens - 1) % block_size else 0


def num_blocks_short(need: KvNeed, room: KvRoom) -> float:
    """Blocks that have to get free before the rule holds; 0 or less: it holds."""
    if room.taken == 0 and room.promised == 0 and need.table_blocks <= room.total:
        return 0
    if need.is_resumed:
        return room.taken + need.num_blocks - room.total
    return room.taken + room.promised + need.num_blocks - room.watermark * room.total


def exceeds_alone(need: KvNeed, total: int, watermark: float) -> bool:
    """Above the watermark even in an empty pool: a new request like that is refused and does not wait."""
    return not need.is_resumed and need.num_blocks > watermark * total
