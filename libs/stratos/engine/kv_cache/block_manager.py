"""Owner of all KV blocks: how often each is referenced, and what state each one is in.

    FREE ──allocate──▶ ALLOCATED ──release──▶ CACHED (has a hash) or FREE
      └───reserve────▶ RESERVED ──publish──▶ ALLOCATED
    CACHED ──reference──▶ ALLOCATED,  CACHED ──evicted by allocate──▶ ALLOCATED
    released under a fence ──▶ FENCED ──unfence──▶ CACHED (has a hash) or FREE

RESERVED blocks belong to a hand-off that is not committed: they never have a hash and are never read.  A fence
says that a copy outside of the step loop touches the block; a fenced block is never given to a sequence.
Ledger law: ``free + cached + allocated + reserved + fenced == total``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from stratos.core.kv import BlockLedger
from stratos.engine.kv_cache.pins import TierPins
from stratos.engine.kv_cache.prefix_cache import PrefixCache


class BlockState(enum.Enum):
    """Use of a block."""

    FREE = "free"
    CACHED = "cached"
    ALLOCATED = "allocated"
    RESERVED = "reserved"
    FENCED = "fenced"


class BlockManager:
    """Reference counts and states of ``num_blocks`` blocks of ``block_size`` tokens."""

    num_pages = 1
    """Ids by which a runner knows one block."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_cache: bool = True,
        max_cache_changes: int = 0,
        max_pinned_ratio: float = 0.0,
    ) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        pins = TierPins(num_blocks, max_pinned_ratio, lambda pin: pin.device_ratio)
        self.cache = PrefixCache(enabled=enable_prefix_cache, max_changes=max_cache_changes, pins=pins)
        self.on_evict: Callable[[bytes, int], None] | None = None
        """Told the hash and the id of a cached block that is about to get another owner."""
        self.usable: Callable[[Sequence[bytes]], int] | None = None
        """Blocks of a known prefix from which a sequence can go on; ``None``: all of them."""
        self.num_evicted = 0
        """Cached blocks that made room for others."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = [0] * num_blocks
        self._fences = [0] * num_blocks
        self._states = [BlockState.FREE] * num_blocks
        self._counts = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` could hand out now."""
        return len(self._free) + self.cache.num_evictable

    @property
    def num_free(self) -> int:
        return len(self._free)

    def is_in_use(self, block: int) -> bool:
        """A sequence or a copy references the block."""
        return self._refs[block] > 0

    def page_ids(self, blocks: Sequence[int]) -> Sequence[int]:
        """Ids by which a runner knows these blocks."""
        return blocks

    def copied_ids(self, copies: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Copies of blocks, (source, destination) each, in a runner's ids."""
        return tuple(copies)

    def match(self, hashes: Sequence[bytes], first_needed: Callable[[int], int] | None = None) -> list[int]:
        """Blocks of the longest known prefix of the chain ``hashes``.

        ``first_needed``: of a number of blocks: index of the first that tokens after them see in every layer.
        """
        found = self.cache.match(hashes)
        return found if self.usable is None else found[: self.usable(hashes[: len(found)])]

    def pass_parts(self, blocks: Iterable[int]) -> None:
        """Take note that a holder of these blocks sees them in the layers without a window alone, from now on."""

    def end_passes(self, blocks: Iterable[int]) -> None:
        """Take note that a holder that has passed these blocks releases them next."""

    def allocate(self, count: int, *, reserved: bool = False) -> list[int] | None:
        """Take ``count`` blocks with one reference each, evicting cached ones; all or nothing."""
        if count > self.num_available:
            return None
        state = BlockState.RESERVED if reserved else BlockState.ALLOCATED
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._refs[block] = 1
            self._move(block, state)
            taken.append(block)
        return taken

    def reference(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that are cached or allocated."""
        for block in blocks:
            if self._refs[block] == 0:
                if self._states[block] is BlockState.CACHED:
                    self.cache.mark_used(block)
                self._move(block, BlockState.ALLOCATED)
            assert self._states[block] is BlockState.ALLOCATED
            self._refs[block] += 1

    def publish(self, blocks: Iterable[int]) -> None:
        """Turn reserved blocks into allocated ones: COMMIT."""
        for block in blocks:
            assert self._states[block] is BlockState.RESERVED
            self._move(block, BlockState.ALLOCATED)

    def release(self, blocks: Sequence[int], *, are_oldest: bool = False) -> None:
        """Take one reference from each block, last block first, so that suffixes are evicted before prefixes.

        ``are_oldest``: those without a reference then are evicted after others that were released so, before the rest.
        """
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._states[block] is BlockState.RESERVED:
                    self.cache.forget_block(block)
                self._retire(block, is_oldest=are_oldest)

    def fence(self, blocks: Iterable[int]) -> None:
        """Keep blocks from being reused until ``unfence``."""
        for block in blocks:
            self._fences[block] += 1

    def unfence(self, blocks: Iterable[int]) -> None:
        """End one fence; a block without other references becomes available."""
        for block in blocks:
            assert self._fences[block] > 0
            self._fences[block] -= 1
            if self._fences[block] == 0 and self._states[block] is BlockState.FENCED:
                self._retire(block)

    def has_fence(self, blocks: Iterable[int]) -> bool:
        """A copy outside of the step loop touches one of them."""
        return any(self._fences[block] for block in blocks)

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Drop blocks from the prefix cache by hash; those in use stay in use. Returns how many were known."""
        known = 0
        for block_hash in hashes:
            block = self.cache.forget(block_hash)
            if block is None:
                continue
            known += 1
            if self._states[block] is BlockState.CACHED:
                self.cache.drop_evictable(block)
                self._free.append(block)
                self._move(block, BlockState.FREE)
        return known

    def ledger(self) -> BlockLedger:
        counts = {state.value: count for state, count in self._counts.items()}
        return BlockLedger(total=self.num_blocks, **counts)

    def verify(self) -> None:
        """Recount everything from scratch and raise ``AssertionError`` where a count or an invariant is off."""
        self.ledger().check_law()
        self.cache.verify()
        for state, count in self._counts.items():
            assert self._states.count(state) == count, f"{state} is counted {count} times"
        assert len(self._free) == len(set(self._free)) == self._counts[BlockState.FREE]
        assert self.cache.num_evictable == self._counts[BlockState.CACHED]
        for block, state in enumerate(self._states):
            in_use = state in (BlockState.ALLOCATED, BlockState.RESERVED)
            assert (self._refs[block] > 0) == in_use, f"block {block}: {self._refs[block]} references, {state}"
            assert state is not BlockState.CACHED or self.cache.has_hash(block)
            assert state is not BlockState.FENCED or self._fences[block] > 0

    def _evict(self) -> int:
        block_hash, block = self.cache.evict()
        self.num_evicted += 1
        if self.on_evict is not None:
            self.on_evict(block_hash, block)
        self.cache.pins.drop(block_hash, "pressure")
        return block

    def _retire(self, block: int, *, is_oldest: bool = False) -> None:
        if self._fences[block]:
            self._move(block, BlockState.FENCED)
        elif self.cache.has_hash(block):
            self._move(block, BlockState.CACHED)
            self.cache.mark_evictable(block, is_oldest=is_oldest)
        else:
            self._move(block, BlockState.FREE)
            self._free.append(block)

    def _move(self, block: int, state: BlockState) -> None:
        self._counts[self._states[block]] -= 1
        self._counts[state] += 1
        self._states[block] = state
