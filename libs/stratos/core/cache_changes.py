"""Changes of a worker's prefix cache, as its routers follow them.

Hashes of blocks are short there: their first 64 bits.  A block hash is salted by tenant, model and adapter
(``stratos.core.block_hash``), so a short one reveals nothing without the salt; two blocks with the same one would only
send a request to a worker that has less of its prompt than was thought.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from stratos.core.kv import KvIdentity

SHORT_HASH_BYTES = 8
_SHORT_OF_WHOLE = "Q24x"
"""A number of 64 bits, and the rest of a hash of 32 bytes."""


def short_hash(block_hash: bytes) -> int:
    """The first 64 bits of a block hash."""
    return int.from_bytes(block_hash[:SHORT_HASH_BYTES], "little")


def short_hashes(hashes: Iterable[bytes]) -> tuple[int, ...]:
    """Short hashes of the blocks of a chain: of all of them at once, as a prompt may have many."""
    chain = tuple(hashes)
    return struct.unpack(f"<{_SHORT_OF_WHOLE * len(chain)}", b"".join(chain))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChanges:
    """Changes with the sequence numbers ``after + 1`` to ``last``, as what is left of them: a block appears once.

    A dump comes in parts: the first one is the whole cache as far as it goes, the others have ``after == last`` and add
    to it.
    """

    after: int
    last: int
    stored: tuple[int, ...] = ()
    """In the device's pool."""
    removed: tuple[int, ...] = ()
    """From there."""
    is_dump: bool = False
    """``stored`` begins the whole cache as of ``last``; what was known before is void."""
    on_host: tuple[int, ...] = ()
    """Among the removed ones, or of a dump: host memory has them."""
    on_disk: tuple[int, ...] = ()
    """Likewise: only disk has them."""

    def parts(self, max_hashes: int) -> Iterable[CacheChanges]:
        """The same, with at most so many hashes each that some tier holds."""
        first = self
        for tier in ("stored", "on_host", "on_disk"):
            names: tuple[int, ...] = getattr(self, tier)
            for begin in range(0, len(names), max_hashes):
                yield replace(first, **(_NO_NAMES | {tier: names[begin : begin + max_hashes]}))
                first = CacheChanges(after=self.last, last=self.last)
        if first is self:
            yield self


_NO_NAMES: dict[str, Any] = {"stored": (), "on_host": (), "on_disk": ()}


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Parts of a block's hash at a model's workers that a gateway cannot know: all but salt, adapter and tokens."""

    identity: KvIdentity
    block_size: int
