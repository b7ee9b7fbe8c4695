"""The last changes of a prefix cache, numbered, for those that keep a copy of what it holds.

A bounded ring: noting a change costs an append and never waits for a reader.  A reader that fell so far back that the
ring has lost what it needs starts again from the whole cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal

from stratos.core.cache_changes import CacheChanges, short_hash

Tier = Literal["host", "disk"]
"""Tier below the device's pool."""


class ChangeLog:
    """Guarded by whatever guards the cache.

    Args:
        max_changes: kept; 0 keeps none.
    """

    def __init__(self, max_changes: int) -> None:
        self._changes: deque[tuple[bytes, bool]] = deque(maxlen=max_changes)
        self.below: Callable[[bytes], Tier | None] = lambda _: None
        """The tier that holds a block which the device does not."""
        self.last = 0
        """Number of the newest change; the first one is 1."""

    def note(self, block_hash: bytes, *, is_stored: bool) -> None:
        """A block got its hash, or lost it."""
        self.last += 1
        self._changes.append((block_hash, is_stored))

    def since(self, after: int) -> CacheChanges | None:
        """Changes after number ``after``; ``None`` when the ring has lost some, or the number is from elsewhere."""
        count = self.last - after
        if not 0 <= count <= len(self._changes):
            return None
        final: dict[bytes, bool] = {}
        for block_hash, is_stored in islice(reversed(self._changes), count):
            final.setdefault(block_hash, is_stored)
        removed = [block_hash for block_hash, is_stored in final.items() if not is_stored]
        tiers = [(short_hash(block_hash), self.below(block_hash)) for block_hash in removed]
        return CacheChanges(
            after=after,
            last=self.last,
            stored=tuple(short_hash(block_hash) for block_hash, is_stored in final.items() if is_stored),
            removed=tuple(name for name, _ in tiers),
            on_host=tuple(name for name, tier in tiers if tier == "host"),
            on_disk=tuple(name for name, tier in tiers if tier == "disk"),
        )
