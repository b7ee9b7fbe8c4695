"""How a sequence gets its block table and loses it: cached prefix, loaded blocks, fresh ones, released ones.

A table covers the sequence's tokens from position 0.  At admission a sequence references what the prefix cache holds,
loads what host memory holds, and takes blocks for all other tokens; it grows step by step.  Where the model's window
is bounded (``kv_window``) a generating sequence takes no more blocks ahead than a window and a step need, starts behind
the part of a cached prefix that nobody sees any more, and releases blocks as its window passes them.

Owns no state: blocks are the block manager's, admission is ``KvAdmission``'s word.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.engine.kv_cache.admission import KvAdmission
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.fences import StepFences
from stratos.engine.kv_cache.host_tier import HostTier
from stratos.engine.kv_cache.window import KvWindow
from stratos.engine.sequence import RELEASED, Sequence


@dataclass(slots=True)
class _Prefix:
    """What is known of a sequence's first tokens."""

    num_blocks: int
    """Full blocks, those nobody sees included."""
    first: int
    """The first that is needed."""
    cached: list[int]
    """Device blocks from there on."""
    hosted: list[int]
    """Host slots behind them, held."""


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The tables of one engine's sequences."""

    blocks: BlockManager
    tier: HostTier
    admission: KvAdmission
    fences: StepFences
    window: KvWindow | None = None

    def window_of(self, sequence: Sequence) -> KvWindow | None:
        """The window, where the sequence may give up what it has passed."""
        return self.window if sequence.request is not None else None

    def build(self, sequence: Sequence, num_budgeted: int, growth: int) -> bool:
        """Reference the known prefix and take blocks for the tokens behind it, or take nothing.

        ``num_budgeted`` and ``growth``: see ``KvAdmission.admits_sequence``.
        """
        if sequence.swapped is not None:
            return self._restore(sequence, num_budgeted, growth)
        size, window = self.blocks.block_size, self.window_of(sequence)
        usable = len(sequence.tokens) - (1 if sequence.job is None else 0)  # the last token of a prompt is sampled
        hashes = [] if sequence.bypasses_prefix_cache else sequence.hash_chain(usable // size, size)
        prefix = self._prefix(sequence, hashes, window)
        num_blocks = len(prefix.cached) + len(prefix.hosted)
        if sequence.job is None or sequence.job.job.compute:
            num_blocks = self.admission.table_blocks(len(sequence.tokens)) - prefix.first
            num_blocks = num_blocks if window is None else min(num_blocks, window.max_blocks)
        if not self.admission.admits_sequence(sequence, prefix.cached, num_blocks, num_budgeted, growth):
            self.tier.unmatch(prefix.hosted)
            return False
        self.blocks.reference(prefix.cached)
        taken = self.blocks.allocate(num_blocks - len(prefix.cached))
        if taken is None:
            self.blocks.release(prefix.cached)
            self.tier.unmatch(prefix.hosted)
            return False
        self.tier.load(prefix.hosted, taken, hashes[prefix.num_blocks - len(prefix.hosted) :])
        sequence.block_table = [RELEASED] * prefix.first + prefix.cached + taken
        sequence.num_released, sequence.num_hashed = prefix.first, prefix.num_blocks
        sequence.num_computed = prefix.num_blocks * size
        return True

    def _prefix(self, sequence: Sequence, hashes: list[bytes], window: KvWindow | None) -> _Prefix:
        cache, may_wait = self.blocks.cache, sequence.job is None
        if window is None:
            cached = cache.match(hashes)
            hosted = self.tier.match(hashes[len(cached) :], may_wait=may_wait)
            return _Prefix(len(cached) + len(hosted), 0, cached, hosted)
        end, cached = cache.match_end(hashes, window.needed)
        hosted = self.tier.match(hashes[end:], may_wait=may_wait)
        num_blocks = end + len(hosted)
        first = window.needed(num_blocks)
        self.tier.unmatch(hosted[: max(0, first - end)])
        return _Prefix(
            num_blocks, first, cached[first - end + len(cached) :] if first < end else [], hosted[max(0, first - end) :]
        )

    def _restore(self, sequence: Sequence, num_budgeted: int, growth: int) -> bool:
        swapped, window = sequence.swapped, self.window_of(sequence)
        assert swapped is not None
        num_swapped = len(swapped.places)
        num_blocks = self.blocks.blocks_for(len(sequence.tokens)) - (swapped.places[-1] + 1 - num_swapped)
        if window is not None:
            num_blocks = max(num_swapped, min(num_blocks, window.max_blocks))
        found = self.tier.resident(sequence)
        admits = self.admission.admits_sequence(sequence, found, num_blocks, num_budgeted, growth)
        return admits and self.tier.restore(sequence, num_blocks)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take blocks until the table covers ``num_tokens``; or change nothing."""
        missing = self.blocks.blocks_for(num_tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        taken = self.blocks.allocate(missing)
        if taken is None:
            return False
        sequence.block_table.extend(taken)
        return True

    def num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence will hold more than now before the table covers ``num_tokens``."""
        missing, window = self.blocks.blocks_for(num_tokens) - len(sequence.block_table), self.window_of(sequence)
        if window is not None:
            missing = min(missing, window.max_blocks - sequence.num_held)
        return max(0, missing)

    def release_passed(self, sequence: Sequence) -> None:
        """Give up the blocks that no token behind the computed ones sees; a launched step may read them still."""
        window = self.window_of(sequence)
        if window is None:
            return
        begin = window.num_head_blocks + sequence.num_released
        end = min(window.first_block(sequence.num_computed), len(sequence.block_table))
        if end <= begin:
            return
        passed = sequence.block_table[begin:end]
        sequence.block_table[begin:end] = [RELEASED] * len(passed)
        sequence.num_released += len(passed)
        self.fences.release(passed, sequence.last_plan)

    def plan_table(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """Block ids that cover ``num_tokens``; a held one stands for those released, on which no kernel relies."""
        table = sequence.block_table[: self.blocks.blocks_for(num_tokens)]
        if sequence.num_released:
            begin = 0 if self.window is None else self.window.num_head_blocks
            end = begin + sequence.num_released
            table[begin:end] = [table[end]] * (end - begin)
        return tuple(table)

    def could_come_back(self, sequence: Sequence) -> bool:
        """Alone in the pool, the sequence could start from its first token again."""
        window, num_blocks = self.window_of(sequence), self.blocks.blocks_for(len(sequence.tokens))
        return (num_blocks if window is None else min(num_blocks, window.max_blocks)) <= self.blocks.num_blocks
