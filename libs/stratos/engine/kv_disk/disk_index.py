"""Which blocks lie on disk, whose they are, and in what order they go: least recently used first.

A tenant has a quota: above it, its own blocks make room for its new ones; above the whole, the oldest of all do.  All
files have one size, so bytes are blocks.  A deleted tenant's blocks are hidden at once and taken out a few at a time:
there may be a million of them, and the step loop waits for the lock.  Law: ``found + written - dropped == stored``, by
the counts of ``dropped``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Literal, get_args

DropReason = Literal["pressure", "quota", "forgotten", "damaged", "other_key", "error"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)
MAX_DROPPED = 256
"""Blocks of a deleted tenant that are taken out at once: some 2 ms."""


class DiskIndex:
    """Guarded by the core's lock.

    Args:
        max_blocks: of all tenants.
        max_tenant_blocks: of each.
    """

    def __init__(self, max_blocks: int, max_tenant_blocks: int) -> None:
        self.max_blocks, self.max_tenant_blocks = max_blocks, max_tenant_blocks
        self.dropped: Counter[DropReason] = Counter()
        self.on_change: Callable[[bytes], None] = lambda _: None
        """Told each block that came or went."""
        self._folders: OrderedDict[bytes, str] = OrderedDict()
        self._by_folder: dict[str, OrderedDict[bytes, None]] = {}
        self._hidden: set[str] = set()
        """Folders of deleted tenants, some of whose blocks are still to be taken out."""

    def __len__(self) -> int:
        return len(self._folders)

    def __contains__(self, block_hash: bytes) -> bool:
        return self.folder_of(block_hash) is not None

    def folder_of(self, block_hash: bytes) -> str | None:
        """Folder of the tenant whose block it is; ``None`` for one that is not there."""
        folder = self._folders.get(block_hash)
        return None if folder in self._hidden else folder

    def recent(self, max_blocks: int) -> list[bytes]:
        """Blocks that were used last, the last one first."""
        latest = islice(reversed(self._folders.items()), max_blocks)
        return [block_hash for block_hash, folder in latest if folder not in self._hidden]

    def num_of(self, folder: str) -> int:
        """Blocks of a tenant."""
        return len(self._by_folder.get(folder, ()))

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of tenants that have blocks, or whose last ones are still to be taken out."""
        return tuple(self._by_folder)

    def add(self, block_hash: bytes, folder: str) -> list[tuple[bytes, str]]:
        """Enter a block as the one used last; returns those that made room, whose files are to be removed."""
        self._folders[block_hash] = folder
        self._by_folder.setdefault(folder, OrderedDict())[block_hash] = None
        self.on_change(block_hash)
        victims = []
        if self.num_of(folder) > self.max_tenant_blocks:
            victims.append((next(iter(self._by_folder[folder])), folder))
            self.drop(victims[-1][0], "quota")
        if len(self) > self.max_blocks:
            victims.append(next(iter(self._folders.items())))
            self.drop(victims[-1][0], "pressure")
        return victims

    def touch(self, block_hash: bytes) -> None:
        """The block was used, if it is still there."""
        if (folder := self._folders.get(block_hash)) is not None:
            self._folders.move_to_end(block_hash)
            self._by_folder[folder].move_to_end(block_hash)

    def drop(self, block_hash: bytes, reason: DropReason) -> str | None:
        """Take a block out; returns its folder, ``None`` where it was gone already."""
        folder = self._folders.pop(block_hash, None)
        if folder is None:
            return None
        self.dropped[reason] += 1
        self.on_change(block_hash)
        del self._by_folder[folder][block_hash]
        if not self._by_folder[folder]:
            del self._by_folder[folder]
        return folder

    def hide(self, folder: str) -> int:
        """Let nothing find the blocks of a deleted tenant; returns how many ``drop_hidden`` is to take out."""
        if folder in self._by_folder:
            self._hidden.add(folder)
        return self.num_of(folder)

    def drop_hidden(self, folder: str) -> bool:
        """Take some of them out; whether there are more."""
        for block_hash in list(islice(self._by_folder.get(folder, ()), MAX_DROPPED)):
            self.drop(block_hash, "forgotten")
        if folder not in self._by_folder:
            self._hidden.discard(folder)
        return folder in self._hidden

    def verify(self) -> None:
        """Raise ``AssertionError`` where a bound or a count is off; takes time by tenants, not by blocks."""
        assert len(self) <= self.max_blocks
        assert sum(len(blocks) for blocks in self._by_folder.values()) == len(self)
        assert all(0 < len(blocks) <= self.max_tenant_blocks for blocks in self._by_folder.values())

    def verify_orders(self) -> None:
        """Raise ``AssertionError`` where the two orders do not agree on a block; for tests."""
        names = {name: folder for folder, blocks in self._by_folder.items() for name in blocks}
        assert names == dict(self._folders)
