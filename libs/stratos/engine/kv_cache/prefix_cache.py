"""Hashes of computed blocks: which block holds which prefix, and in what order unused ones are given up.

A block is *evictable* while no sequence references it; the least recently released one goes first, and those with a
pin (``pins``) after all others.  Only full, computed blocks get a hash, and a hash is a SHA-256 chain over tenant salt,
identity and tokens (``stratos.core.block_hash``), so equal hashes mean equal content.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from stratos.core.cache_changes import CacheChanges, short_hashes
from stratos.engine.kv_cache.change_log import ChangeLog
from stratos.engine.kv_cache.pins import EvictionOrder, Pin, TierPins


class PrefixCache:
    """Map from block hash to block id, with the eviction order of unreferenced blocks."""

    def __init__(self, *, enabled: bool = True, max_changes: int = 0, pins: TierPins | None = None) -> None:
        self._enabled = enabled
        self.pins = TierPins(0, 0.0, lambda pin: pin.device_ratio) if pins is None else pins
        self.pins.on_change = self._note_pin
        self.changes = ChangeLog(max_changes)
        """Which hashes came and went."""
        self.below: Callable[[], tuple[Iterable[bytes], Iterable[bytes]]] = lambda: ((), ())
        """Hashes that host memory holds and the device does not, and those that only disk does."""
        self.on_gone: Callable[[bytes], object] = lambda _: None
        """Told a hash that no block has any more."""
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._evictable = EvictionOrder()

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of the chain ``hashes``."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def match_end(self, hashes: Sequence[bytes], first_needed: Callable[[int], int]) -> tuple[int, list[int]]:
        """The longest prefix of the chain of which every block that is still needed is known.

        Args:
            hashes: the chain.
            first_needed: of a number of blocks: index of the first that tokens after them see; never descends.

        Returns:
            How many blocks the prefix has, and those from the first needed one on.
        """
        end = index = len(hashes)
        blocks: list[int] = []
        while index > first_needed(end):
            index -= 1
            block = self._block_of.get(hashes[index])
            if block is None:
                end, blocks = index, []
            else:
                blocks.append(block)
        return end, blocks[::-1]

    def blocks_by_hash(self) -> dict[bytes, int]:
        return dict(self._block_of)

    def hashes(self) -> tuple[bytes, ...]:
        """Every hash that a block has."""
        return tuple(self._block_of)

    def changes_since(self, after: int | None, guard: AbstractContextManager[Any]) -> CacheChanges:
        """Changes after change ``after``; all of the cache for ``None``, or an old number.

        ``guard`` guards the cache; it is not held while names are made, which may take milliseconds.
        """
        with guard:
            changes = None if after is None else self.changes.since(after)
            if changes is not None:
                return changes
            last, hashes, below = self.changes.last, self.hashes(), self.below()
        on_host, on_disk = (short_hashes(names) for names in below)
        stored = short_hashes(hashes)
        return CacheChanges(after=0, last=last, stored=stored, is_dump=True, on_host=on_host, on_disk=on_disk)

    def note_below(self, block_hash: bytes) -> None:
        """A lower tier got a block, or gave it up; it counts where the device has none."""
        if block_hash not in self._block_of:
            self.changes.note(block_hash, is_stored=False)

    def find(self, block_hash: bytes) -> int | None:
        return self._block_of.get(block_hash)

    def insert(self, block_hash: bytes, block: int) -> bool:
        """Give a computed block its hash; ``False`` if another block has the hash already (this one stays private)."""
        if not self._enabled or block_hash in self._block_of or block in self._hash_of:
            return False
        self._block_of[block_hash] = block
        self._hash_of[block] = block_hash
        self.changes.note(block_hash, is_stored=True)
        return True

    def has_hash(self, block: int) -> bool:
        return block in self._hash_of

    def forget(self, block_hash: bytes) -> int | None:
        """Take a hash away; returns the block that had it."""
        block = self._block_of.pop(block_hash, None)
        if block is not None:
            self.pins.drop(block_hash, "forgotten")
            del self._hash_of[block]
            self.on_gone(block_hash)
            self.changes.note(block_hash, is_stored=False)
        return block

    def forget_block(self, block: int) -> None:
        """Take the hash of ``block`` away, if it has one."""
        block_hash = self._hash_of.get(block)
        if block_hash is not None:
            self.forget(block_hash)

    def pin(self, hashes: Sequence[bytes], pin: Pin) -> int:
        """Keep blocks of a prompt as long as a pin says; returns how many of the first ones are pinned."""
        if self.pins.renew(hashes, pin):
            return len(hashes)
        return self.pins.add(list(itertools.takewhile(self._block_of.__contains__, hashes)), pin)

    def _note_pin(self, block_hash: bytes, is_pinned: bool) -> None:
        block = self._block_of.get(block_hash)
        if block is not None:
            self._evictable.note_pin(block, is_pinned)

    def mark_evictable(self, block: int, *, is_oldest: bool = False) -> None:
        """No sequence references the block any more; it is now the last one by use, or the first."""
        assert block not in self._evictable
        self._evictable.add(block, is_pinned=self._hash_of[block] in self.pins, is_oldest=is_oldest)

    def mark_used(self, block: int) -> None:
        """A sequence references the block again."""
        assert block in self._evictable
        self.drop_evictable(block)

    def evict(self) -> tuple[bytes, int]:
        """Give up the next block and its hash; there must be one. Its pin, if it has one, is left to the caller."""
        block = self._evictable.pop()
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        self.on_gone(block_hash)
        self.changes.note(block_hash, is_stored=False)
        return block_hash, block

    def oldest(self, count: int) -> list[tuple[int, bytes]]:
        """The next blocks to be evicted, with their hashes, but for those that were released as the oldest ones."""
        first = [block for block in self._evictable.first(count) if not self._evictable.was_put_back(block)]
        return [(block, self._hash_of[block]) for block in first]

    def drop_evictable(self, block: int) -> None:
        """Remove a block from the eviction order."""
        self._evictable.remove(block)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    def verify(self) -> None:
        """Raise ``AssertionError`` where pins and the order of eviction do not agree."""
        self.pins.verify(self._block_of.__contains__)
        pinned = {block for block in self._evictable.blocks() if self._hash_of[block] in self.pins}
        assert pinned == self._evictable.pinned
