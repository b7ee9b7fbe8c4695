"""Block manager of a model with KV groups: blocks whose window part may end before they do (``contract.kv_groups``).

To sequences, prefix cache, fences and hand-offs a block is what it always is.  Beside its state it has pages: all of
them when it is taken, those of its full columns until it is free.

    a holder *passes* a block when no token of its own sees it any more in the layers with a window
    all holders passed it      the window part is *idle*: its pages serve the next allocation, oldest first
    nothing else holds it      likewise, where the last holder had passed it; else the part goes with its block
    a part is given up         the block stays cached; a prefix that ends near it is not found any more

What is counted outside are whole blocks, so pages are told in those: ``num_blocks`` is the pool over the size of a
block with all its pages, and the pool may have more blocks than that, most of them without their window part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stratos.core.kv import BlockLedger
from stratos.engine.contract.kv_groups import KvGroups
from stratos.engine.kv_cache.block_manager import BlockManager, BlockState


class GroupedBlockManager(BlockManager):
    """Counts of ``num_blocks`` whole blocks, and which pages each has."""

    def __init__(self, num_blocks: int, block_size: int, groups: KvGroups, **options: Any) -> None:
        num_ids = num_blocks * groups.num_pages // groups.num_full
        super().__init__(num_ids, block_size, **options)
        self.num_blocks, self.groups, self.num_pages = num_blocks, groups, groups.num_pages
        self._free_pages = list(range(num_blocks * groups.num_pages - 1, -1, -1))
        self._full: list[tuple[int, ...]] = [()] * num_ids
        self._parts: list[tuple[int, ...]] = [()] * num_ids
        self._passes = [0] * num_ids
        """How many of its holders have passed a block."""
        self._spent: set[int] = set()
        """Blocks whose last holder had passed them."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks with an idle window part, oldest first."""
        self._num_idle_in_use = 0
        self._held = dict.fromkeys(BlockState, 0)
        """Pages by the state of their block."""

    @property
    def num_available(self) -> int:
        """Whole blocks that ``allocate`` could hand out now."""
        num_idle = self._num_idle_in_use * self.groups.num_window
        return (len(self._free_pages) + self._held[BlockState.CACHED] + num_idle) // self.groups.num_pages

    @property
    def num_free(self) -> int:
        return len(self._free_pages) // self.groups.num_pages

    def page_ids(self, blocks: Sequence[int]) -> Sequence[int]:
        """Pages of blocks, ``num_pages`` each; one of the block itself stands for a window part that is gone."""
        num_window = self.groups.num_window
        pages: list[int] = []
        for block in blocks:
            full = self._full[block]
            pages += full
            pages += self._parts[block] or full[:1] * num_window
        return pages

    def copied_ids(self, copies: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        pages = (zip(self.page_ids([source]), self.page_ids([target]), strict=True) for source, target in copies)
        return tuple(pair for pairs in pages for pair in pairs)

    def match(self, hashes: Sequence[bytes], first_needed: Callable[[int], int] | None = None) -> list[int]:
        """Blocks of the longest known prefix whose window parts are there from the first one that is needed on."""
        blocks = self.cache.match(hashes)
        end = index = len(blocks)
        while index > (0 if first_needed is None else first_needed(end)):
            index -= 1
            if not self._parts[blocks[index]]:
                end = index
        return blocks[:end]

    def allocate(self, count: int, *, reserved: bool = False) -> list[int] | None:
        if count > self.num_available:
            return None
        while len(self._free_pages) < count * self.groups.num_pages:
            self._make_room()
        return super().allocate(count, reserved=reserved)

    def reference(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().reference(blocks)
        self._spent.difference_update(blocks)
        self._update(blocks)

    def pass_parts(self, blocks: Iterable[int]) -> None:
        """One more holder of each block does not see its window part any more."""
        blocks = list(blocks)
        for block in blocks:
            self._passes[block] += 1
            assert self._passes[block] <= self._refs[block], f"block {block} passed by more than hold it"
        self._update(blocks)

    def end_passes(self, blocks: Iterable[int]) -> None:
        """A holder that has passed these blocks releases them next."""
        for block in blocks:
            assert self._passes[block] > 0
            self._passes[block] -= 1
            if self._refs[block] == 1:
                self._spent.add(block)

    def release(self, blocks: Sequence[int], *, are_oldest: bool = False) -> None:
        super().release(blocks, are_oldest=are_oldest)
        self._update(reversed(blocks))

    def fence(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().fence(blocks)
        self._update(blocks)

    def unfence(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().unfence(blocks)
        self._update(blocks)

    def ledger(self) -> BlockLedger:
        # pages rounded to whole blocks so that the sum is right: 5 + 3 + 1 + 6 of 24 pages in blocks of 3 are 2 blocks,
        # 1 (8 pages so far), 0 (9) and 2 (15), and 3 are free
        num_idle = self._num_idle_in_use * self.groups.num_window
        held, counts, so_far, num_pages = self._held, [], 0, 0
        for state in (BlockState.ALLOCATED, BlockState.RESERVED, BlockState.FENCED, BlockState.CACHED):
            num_pages += held[state]
            num_pages += {BlockState.ALLOCATED: -num_idle, BlockState.CACHED: num_idle}.get(state, 0)
            end = -(-num_pages // self.groups.num_pages)
            counts.append(end - so_far)
            so_far = end
        allocated, reserved, fenced, cached = counts
        free = self.num_blocks - so_far
        return BlockLedger(self.num_blocks, free, cached, allocated, reserved, fenced)

    def verify(self) -> None:
        super().verify()
        pages, idle_in_use = list(self._free_pages), 0
        held = dict.fromkeys(BlockState, 0)
        for block, state in enumerate(self._states):
            own = self._full[block] + self._parts[block]
            pages += own
            held[state] += len(own)
            assert (state is BlockState.FREE) == (not self._full[block])
            assert self._passes[block] <= self._refs[block], f"block {block}: {self._passes[block]} passes"
            assert (block in self._idle) == self._is_idle(block), f"block {block}: idle or not"
            idle_in_use += block in self._idle and state is BlockState.ALLOCATED
        assert sorted(pages) == list(range(self.num_blocks * self.groups.num_pages)), "a page is lost, or held twice"
        assert held == self._held
        assert idle_in_use == self._num_idle_in_use
        assert all(self._states[block] in (BlockState.CACHED, BlockState.FENCED) for block in self._spent)

    def _is_idle(self, block: int) -> bool:
        if not self._parts[block] or self._fences[block]:
            return False
        if self._states[block] is BlockState.ALLOCATED:
            return 0 < self._passes[block] == self._refs[block]
        return self._states[block] is BlockState.CACHED and block in self._spent

    def _update(self, blocks: Iterable[int]) -> None:
        """See which window parts are idle by now; of a block that nothing can find it is free at once."""
        for block in blocks:
            if (is_idle := self._is_idle(block)) != (block in self._idle):
                self._note_idle(block, is_idle=is_idle)
            if is_idle and not self.cache.has_hash(block):
                self._give_up_part(block)

    def _note_idle(self, block: int, *, is_idle: bool) -> None:
        if is_idle:
            self._idle[block] = None
        else:
            del self._idle[block]
        self._num_idle_in_use += (1 if is_idle else -1) * (self._states[block] is BlockState.ALLOCATED)

    def _make_room(self) -> None:
        """Give up the oldest idle part, or evict a block."""
        if self._idle:
            self._give_up_part(next(iter(self._idle)))
            return
        block = self._evict()
        self._free.append(block)
        self._move(block, BlockState.FREE)

    def _give_up_part(self, block: int) -> None:
        self._note_idle(block, is_idle=False)
        self._free_pages += self._parts[block]
        self._held[self._states[block]] -= len(self._parts[block])
        self._parts[block] = ()

    def _move(self, block: int, state: BlockState) -> None:
        if block in self._idle:
            self._note_idle(block, is_idle=False)
        before = self._states[block]
        if before is BlockState.FREE:
            self._take_pages(block)
        num_pages = len(self._full[block]) + len(self._parts[block])
        self._held[before] -= 0 if before is BlockState.FREE else num_pages
        if state is BlockState.FREE:
            self._free_pages += self._full[block] + self._parts[block]
            self._full[block] = self._parts[block] = ()
            self._spent.discard(block)
        else:
            self._held[state] += num_pages
        super()._move(block, state)
        self._update([block])

    def _take_pages(self, block: int) -> None:
        num_full, num_pages = self.groups.num_full, self.groups.num_pages
        taken = tuple(self._free_pages[-num_pages:])
        del self._free_pages[-num_pages:]
        self._full[block], self._parts[block] = taken[:num_full], taken[num_full:]
