"""Names of computed blocks: which block holds which prefix, and in what order unused ones are given up.

A block is *evictable* while no sequence references it; the least recently released one goes first.  Only
full, computed blocks get a name, and a name is a SHA-256 chain over tenant salt, identity and tokens
(``stratos.core.block_hash``), so equal names mean equal content.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence


class PrefixCache:
    """Map from block name to block id, with the eviction order of unreferenced blocks."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()

    def match(self, names: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of the chain ``names``."""
        blocks: list[int] = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def match_end(self, names: Sequence[bytes], first_needed: Callable[[int], int]) -> tuple[int, list[int]]:
        """The longest prefix of the chain of which every block that is still needed is known.

        Args:
            names: the chain.
            first_needed: of a number of blocks: index of the first that tokens behind them see; never descends.

        Returns:
            How many blocks the prefix has, and those from the first needed one on.
        """
        end = index = len(names)
        blocks: list[int] = []
        while index > first_needed(end):
            index -= 1
            block = self._block_of.get(names[index])
            if block is None:
                end, blocks = index, []
            else:
                blocks.append(block)
        return end, blocks[::-1]

    def find(self, name: bytes) -> int | None:
        """The block with this name."""
        return self._block_of.get(name)

    def insert(self, name: bytes, block: int) -> bool:
        """Name a computed block; ``False`` if another block has the name already (this one stays private)."""
        if not self._enabled or name in self._block_of or block in self._name_of:
            return False
        self._block_of[name] = block
        self._name_of[block] = name
        return True

    def is_named(self, block: int) -> bool:
        """The block's content may be found by name."""
        return block in self._name_of

    def forget(self, name: bytes) -> int | None:
        """Take a name away; returns the block that had it."""
        block = self._block_of.pop(name, None)
        if block is not None:
            del self._name_of[block]
        return block

    def forget_block(self, block: int) -> None:
        """Take the name of ``block`` away, if it has one."""
        name = self._name_of.pop(block, None)
        if name is not None:
            del self._block_of[name]

    def mark_evictable(self, block: int, *, is_oldest: bool = False) -> None:
        """Nobody references the named block any more; it is now the last to be evicted, or the first."""
        assert block in self._name_of
        assert block not in self._evictable
        self._evictable[block] = None
        if is_oldest:
            self._evictable.move_to_end(block, last=False)

    def mark_used(self, block: int) -> None:
        """Somebody references the block again."""
        del self._evictable[block]

    def evict(self) -> tuple[bytes, int]:
        """Give up the least recently released block and its name; there must be one."""
        block, _ = self._evictable.popitem(last=False)
        name = self._name_of[block]
        self.forget_block(block)
        return name, block

    def oldest(self, count: int) -> list[tuple[int, bytes]]:
        """The next blocks to be evicted, with their names."""
        return [(block, self._name_of[block]) for block in itertools.islice(self._evictable, count)]

    def drop_evictable(self, block: int) -> None:
        """Remove a block that lost its name from the eviction order."""
        self._evictable.pop(block, None)

    @property
    def num_evictable(self) -> int:
        """Blocks that could be evicted now."""
        return len(self._evictable)
