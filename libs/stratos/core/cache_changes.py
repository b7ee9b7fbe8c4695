"""Changes of a worker's prefix cache, as its routers follow them.

Hashes of blocks are short there: their first 64 bits.  A block hash is salted by tenant, model and adapter
(``stratos.core.block_hash``), so a short one reveals nothing without the salt; two blocks with the same one would only
send a request to a worker that has less of its prompt than was thought.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratos.core.kv import KvIdentity

SHORT_HASH_BYTES = 8


def short_hash(block_hash: bytes) -> int:
    """The first 64 bits of a block hash."""
    return int.from_bytes(block_hash[:SHORT_HASH_BYTES], "little")


def short_hashes(hashes: Iterable[bytes]) -> tuple[int, ...]:
    """Short hashes of the blocks of a chain."""
    return tuple(map(short_hash, hashes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChanges:
    """Changes with the sequence numbers ``after + 1`` to ``last``, as what is left of them: a block appears once.

    A dump comes in parts: the first one is the whole cache as far as it goes, the others have ``after == last`` and add
    to it.
    """

    after: int
    last: int
    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    is_dump: bool = False
    """``stored`` begins the whole cache as of ``last``; what was known before is void."""

    def parts(self, max_hashes: int) -> Iterable[CacheChanges]:
        """The same, with at most so many stored hashes each."""
        yield CacheChanges(
            after=self.after,
            last=self.last,
            stored=self.stored[:max_hashes],
            removed=self.removed,
            is_dump=self.is_dump,
        )
        for begin in range(max_hashes, len(self.stored), max_hashes):
            yield CacheChanges(after=self.last, last=self.last, stored=self.stored[begin : begin + max_hashes])


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Parts of a block's hash at a model's workers that a gateway cannot know: all but salt, adapter and tokens."""

    identity: KvIdentity
    block_size: int
