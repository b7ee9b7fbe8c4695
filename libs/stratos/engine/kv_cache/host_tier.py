"""The host-memory tier: which KV blocks are copied between the device pool and host memory, and when.

Two things live there.  A preempted sequence is *swapped out* when that beats computing it again: all its blocks are
held in host memory until it is *restored* or ends.  A cached block that the device pool evicts is *kept* under its
hash, and a later prefix hit *loads* it.  Copies ride in step plans: a plan copies out, then in, then forks blocks
(copy-on-write), then runs its rows, so all that the same plan does with a block that was copied out comes after.

    plan 7   sequence A in blocks 3, 4, 5 is preempted. Block 3 is known on the host in slot 1: shared, not copied.
             outs (4 -> slot 8), (5 -> slot 9); A holds slots 1, 8, 9 and no block; rows of plan 7 may write 4 and 5
    plan 8   A is admitted again. Block 3 is still cached on the device: referenced. Blocks 6 and 2 are allocated:
             ins (slot 8 -> 6), (slot 9 -> 2); A's table is 3, 6, 2, its slots are released

``is_fenced`` (overlap) is for runners that copy while steps run.  A block that is copied out then has no new owner, and
a block that is loaded has no reader, until the plan has retired; an evicted block cannot be copied any more, so
cached blocks are copied before they are due (``_keep_oldest``).

The destination of a load holds a reference of its own until the plan retires, so its sequence may end before.
Owns the decisions and what is pending; slots belong to ``HostPool``, blocks to ``BlockManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.engine.contract.lower_tier import LowerTier
from stratos.engine.contract.results import HostTierStatus
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.host_pool import HostPool
from stratos.engine.kv_cache.swap_costs import SwapCosts
from stratos.engine.sequence import RELEASED, Sequence, SwappedState
from stratos.engine.settings import SchedulerConfig

KEEP_WHEN_FREE_BELOW = 4
"""Fenced: cached blocks are copied out when fewer than one in this many device blocks are free."""
MAX_KEEP_BLOCKS = 8
"""Fenced: cached blocks copied out by one plan."""


@dataclass(frozen=True, slots=True)
class BlockOut:
    """Device block -> host slot."""

    block: int
    slot: int
    is_referenced: bool
    """The copy holds a reference on the block (a cached one that is kept ahead of its eviction)."""


@dataclass(frozen=True, slots=True)
class BlockIn:
    """Host slot -> device block, which gets ``block_hash`` when the copy may be relied on."""

    slot: int
    block: int
    block_hash: bytes | None


@dataclass(slots=True)
class Swaps:
    """Copies of one plan between the tiers."""

    outs: list[BlockOut] = field(default_factory=list)
    ins: list[BlockIn] = field(default_factory=list)
    owners: list[Sequence] = field(default_factory=list)
    """Sequences that are swapped out."""
    are_fenced: bool = False
    """Until the plan has retired nothing touches the blocks of these copies."""

    def __bool__(self) -> bool:
        return bool(self.outs or self.ins)


class HostTier:
    """The second tier of one engine; with no slots it never does anything."""

    def __init__(
        self,
        blocks: BlockManager,
        num_slots: int,
        costs: SwapCosts,
        *,
        is_fenced: bool = False,
        always: bool = False,
        max_pinned_ratio: float = 0.0,
    ) -> None:
        self._blocks, self.costs, self._is_fenced, self._always = blocks, costs, is_fenced, always
        self.pool = HostPool(num_slots, max_pinned_ratio)
        self._next = Swaps()
        self._loading: set[int] = set()
        self._plan: int | None = None
        """Number of the plan that is being made."""
        self.on_swap_out: Callable[[bytes, str], None] | None = None
        """Told the hash and the tenant of each block of a preempted sequence that others may share."""
        self.below: LowerTier | None = None
        """Told each block that was copied out under its hash."""
        self.num_kept = 0
        """Device blocks that pending copies of cached blocks reference."""
        self.num_swapped_out = self.num_restored = self.num_blocks_out = self.num_blocks_in = self.num_damaged = 0
        if num_slots:
            blocks.on_evict = self._keep_evicted

    @property
    def is_enabled(self) -> bool:
        return self.pool.num_slots > 0

    @property
    def is_busy(self) -> bool:
        """Pending or launched copies hold references on device blocks."""
        return bool(self._loading or self.num_kept)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    @property
    def has_pending(self) -> bool:
        """The next plan has something to copy."""
        return bool(self._next)

    def status(self) -> HostTierStatus:
        return HostTierStatus(
            slots=self.pool.ledger(),
            num_swapped_out=self.num_swapped_out,
            num_restored=self.num_restored,
            num_blocks_out=self.num_blocks_out,
            num_blocks_in=self.num_blocks_in,
            num_damaged=self.num_damaged,
            num_evicted=self.pool.num_evicted,
        )

    # -- preempted sequences -----------------------------------------------------------------------

    def swap_out(self, sequence: Sequence) -> bool:
        """Copy the computed blocks of a sequence out, if that pays; the caller releases its device blocks."""
        num_blocks = self._blocks.blocks_for(sequence.num_computed)
        places = [place for place in range(num_blocks) if sequence.block_table[place] != RELEASED]
        table = [sequence.block_table[place] for place in places]
        is_partial = sequence.bypasses_prefix_cache or sequence.num_in_flight or sequence.awaits_copy
        is_settled = not is_partial and not self.is_loading(table)
        if not self.is_enabled or self._plan is None or not table or not is_settled:
            return False
        if not self._always and not self.costs.is_swap_worth(sequence.num_computed, len(table)):
            return False
        num_outs = len(self._next.outs)
        slots = self._slots_for(sequence, places, table)
        if slots is None:
            return False
        if self._is_fenced and len(self._next.outs) > num_outs:
            sequence.last_plan = self._plan  # the release that follows fences its blocks until this plan has retired
        self._next.owners.append(sequence)
        sequence.swapped = SwappedState(tuple(slots), tuple(places), sequence.num_computed, sequence.num_hashed)
        self.num_swapped_out += 1
        return True

    def _slots_for(self, sequence: Sequence, places: list[int], table: list[int]) -> list[int] | None:
        """Held slots for the blocks of a table; those with a known hash are shared, the others are copied."""
        hashes = self._hashes(sequence, places, sequence.num_hashed)
        slots = [self.pool.find(block_hash) if block_hash else None for block_hash in hashes]
        known = [slot for slot in slots if slot is not None]
        self.pool.hold(known)
        if slots.count(None) > self.pool.num_available:
            self.pool.release(known)
            return None
        held = []
        for block, block_hash, slot in zip(table, hashes, slots, strict=True):
            if slot is None:
                slot = self._copy_out(block, block_hash)
                self.pool.hold([slot])
            held.append(slot)
            if block_hash is not None and self.on_swap_out is not None:
                # The device pool may never have had the block under its hash: another one had it when this was made.
                self.on_swap_out(block_hash, sequence.terms.tenant)
        return held

    def _hashes(self, sequence: Sequence, places: Series[int], num_hashed: int) -> list[bytes | None]:
        """Hashes of the blocks that others may share; ``None`` for private ones, the last above all."""
        num_hashed = min(num_hashed, places[-1] + 1)
        hashes = sequence.hash_chain(num_hashed, self._blocks.block_size)
        return [hashes[place] if place < num_hashed else None for place in places]

    def resident(self, sequence: Sequence) -> list[int]:
        """Device blocks that hold parts of a swapped-out sequence already."""
        return [block for block in self._hits(sequence) if block is not None]

    def _hits(self, sequence: Sequence) -> list[int | None]:
        swapped = sequence.swapped
        assert swapped is not None
        hashes = self._hashes(sequence, swapped.places, swapped.num_hashed)
        return [self._blocks.cache.find(block_hash) if block_hash else None for block_hash in hashes]

    def restore(self, sequence: Sequence, num_blocks: int) -> bool:
        """Let a swapped-out sequence hold ``num_blocks``, and load what it had; or change nothing."""
        swapped = sequence.swapped
        assert swapped is not None
        if any(self.pool.is_filling(slot) for slot in swapped.slots):
            return False
        hits, found = self._hits(sequence), self.resident(sequence)
        self._blocks.reference(found)
        taken = self._blocks.allocate(num_blocks - len(found))
        if taken is None:
            self._blocks.release(found)
            return False
        fresh, hashes = iter(taken), self._hashes(sequence, swapped.places, swapped.num_hashed)
        table = [RELEASED] * (swapped.places[-1] + 1)
        for place, slot, block_hash, hit in zip(swapped.places, swapped.slots, hashes, hits, strict=True):
            table[place] = hit if hit is not None else next(fresh)
            if hit is None:
                self._copy_in(slot, table[place], block_hash)
        sequence.block_table, sequence.num_released = [*table, *fresh], len(table) - len(swapped.places)
        sequence.num_computed, sequence.num_hashed = swapped.num_tokens, swapped.num_hashed
        self.drop(sequence)
        self.num_restored += 1
        return True

    def drop(self, sequence: Sequence) -> None:
        """A sequence no longer needs what was swapped out for it."""
        if sequence.swapped is not None:
            self.pool.release(sequence.swapped.slots)
            sequence.swapped = None

    # -- cached blocks -----------------------------------------------------------------------------

    def match(self, hashes: Series[bytes], *, may_wait: bool) -> list[int]:
        """Slots of the longest known prefix of the chain ``hashes``, where loading them beats computing them.

        They are held until ``load`` or ``unmatch``.  ``may_wait``: the caller asks ``must_wait`` before it reads.
        """
        slots: list[int] = []
        for block_hash in hashes if self.is_enabled and (may_wait or not self._is_fenced) else ():
            slot = self.pool.find(block_hash)
            if slot is None or self.pool.is_filling(slot):
                break
            slots.append(slot)
        if not slots or not (self._always or self.costs.is_load_worth(len(slots))):
            return []
        self.pool.hold(slots)
        return slots

    def unmatch(self, slots: Series[int]) -> None:
        """Release slots that were matched and are not loaded."""
        self.pool.release(slots)

    def load(self, slots: Series[int], blocks: Series[int], hashes: Series[bytes]) -> None:
        """Fill the first of the device blocks, which the caller references, from matched slots."""
        for slot, block, block_hash in zip(slots, blocks, hashes, strict=False):
            self._copy_in(slot, block, block_hash)
        self.unmatch(slots)

    def must_wait(self, table: Series[int]) -> bool:
        """Rows over these blocks have to wait for a plan to retire."""
        return self._is_fenced and self.is_loading(table)

    def is_loading(self, table: Series[int]) -> bool:
        """The pending or launched copy into some block of the table has not retired."""
        return bool(self._loading) and not self._loading.isdisjoint(table)

    def forget(self, hashes: Series[bytes]) -> int:
        return max(self.pool.forget(hashes), 0 if self.below is None else self.below.forget(hashes))

    def _keep_evicted(self, block_hash: bytes, block: int) -> None:
        """The device pool gives up a cached block: copy it out before its next owner writes.

        Only while a plan is being made: a block evicted at another time may be written before the next plan runs.
        """
        if self._plan is None or self._is_fenced or self.pool.find(block_hash) is not None:
            return
        if self._is_keep_worth():
            self._copy_out(block, block_hash)

    def _keep_oldest(self) -> None:
        """Fenced: copy out the cached blocks that would be evicted next, while no plan writes them."""
        blocks = self._blocks
        if not (self._is_fenced and self.is_enabled) or blocks.num_free * KEEP_WHEN_FREE_BELOW >= blocks.num_blocks:
            return
        # No more than fit, and each once while nothing uses it. Else they take each other's slots in turn, for ever
        # where a prompt that waits looks for its own slots in each plan, which makes those the youngest.
        for block, block_hash in blocks.cache.oldest(min(MAX_KEEP_BLOCKS, self.pool.num_unpinned)):
            if self.pool.find(block_hash) is None and self._is_keep_worth():
                blocks.reference([block])
                self._copy_out(block, block_hash, is_referenced=True)

    def _is_keep_worth(self) -> bool:
        """No block, with a pin or without, pushes out a slot that has one."""
        return self.pool.num_unpinned > 0 and (self._always or self.costs.is_keep_worth())

    # -- plans -------------------------------------------------------------------------------------

    def begin_plan(self, number: int) -> None:
        """Plan ``number`` is being made, until ``drain_swaps``."""
        self._plan = number
        self._keep_oldest()

    def drain_swaps(self) -> Swaps:
        """Copies of the plan that is being made."""
        self._plan = None
        swaps, self._next = self._next, Swaps()
        swaps.are_fenced = self._is_fenced
        return swaps

    def retire(self, swaps: Swaps, seconds: float, damaged: Series[int] = ()) -> set[int]:
        """The plan is done; its copies took ``seconds``, and what it read of the slots ``damaged`` was not sound.

        Returns device blocks that were filled from those: no row may read them, and no hash leads to them any more.
        """
        if not swaps:
            return set()
        self._end_outs(swaps, is_valid=True)
        bad = [copy for copy in swaps.ins if copy.slot in damaged]
        self.num_damaged += len(bad)
        for copy in bad:
            if copy.block_hash is not None:
                self.pool.forget([copy.block_hash])
                self._blocks.forget([copy.block_hash])
        for copy in swaps.ins:
            # the slot is held until now, so its hash is gone only where it was dropped while the copy ran
            is_forgotten = copy.block_hash is not None and self.pool.find(copy.block_hash) is None
            self.pool.end_move(copy.slot)
            self.pool.release([copy.slot])
            self._loading.discard(copy.block)
            # without fences ``_copy_in`` did this: a row of the same plan may read the block
            if self._is_fenced and copy.block_hash is not None and not is_forgotten:
                self._blocks.cache.insert(copy.block_hash, copy.block)
        self._blocks.release([copy.block for copy in swaps.ins])
        self.num_blocks_out += len(swaps.outs)
        self.num_blocks_in += len(swaps.ins)
        self.costs.observe_copies(len(swaps.outs) + len(swaps.ins), seconds)
        return {copy.block for copy in bad}

    def withdraw(self, swaps: Swaps) -> None:
        """The plan failed or was not run: the next one does its loads; what it copied out is not to be trusted."""
        for sequence in swaps.owners:
            self.drop(sequence)  # computes its tokens again
        self._end_outs(swaps, is_valid=False)
        self._next.ins = swaps.ins + self._next.ins

    def _end_outs(self, swaps: Swaps, *, is_valid: bool) -> None:
        for copy in swaps.outs:
            self.pool.end_move(copy.slot, is_valid=is_valid)
            block_hash = self.pool.hash_of(copy.slot) if self.below is not None else None
            if block_hash is not None and self.below is not None:
                self.below.note(block_hash)
        referenced = [copy.block for copy in swaps.outs if copy.is_referenced]
        self.num_kept -= len(referenced)
        self._blocks.release(referenced[::-1], are_oldest=True)  # they go in the order in which they would have gone

    def _copy_out(self, block: int, block_hash: bytes | None, *, is_referenced: bool = False) -> int:
        slot = self.pool.allocate(block_hash)
        assert slot is not None
        if block_hash is not None and (pin := self._blocks.cache.pins.find(block_hash)) is not None:
            self.pool.pin([block_hash], pin)
        self.num_kept += is_referenced
        self._next.outs.append(BlockOut(block, slot, is_referenced))
        return slot

    def _copy_in(self, slot: int, block: int, block_hash: bytes | None) -> None:
        """The destination and the source stay until the plan has retired, also when the sequence ends first."""
        self.pool.hold([slot])  # the caller's hold ends with the plan's decision, this one when the plan retires
        self.pool.begin_move(slot)  # no copy may fill the slot while this one reads it
        self._blocks.reference([block])  # its sequence may be aborted before the copy is done
        self._loading.add(block)
        if block_hash is not None and self.pool.find(block_hash) is None:
            block_hash = None  # it was dropped while the sequence was swapped out: its tenant may be no more
        self._next.ins.append(BlockIn(slot, block, block_hash))
        if block_hash is not None and not self._is_fenced:
            self._blocks.cache.insert(block_hash, block)


def make_tier(
    info: RunnerInfo, config: SchedulerConfig, blocks: BlockManager, clock: Clock, *, is_fenced: bool
) -> HostTier:
    """The tier of an engine, as its settings say."""
    costs = SwapCosts(info.geometry.token_bytes * blocks.block_size, blocks.block_size, clock)
    num_slots = info.num_host_blocks if config.switches.host_tier and config.baseline.is_paged else 0
    return HostTier(
        blocks,
        num_slots,
        costs,
        is_fenced=is_fenced,
        always=not config.switches.swap_costs,
        max_pinned_ratio=config.max_pinned_ratio,
    )
