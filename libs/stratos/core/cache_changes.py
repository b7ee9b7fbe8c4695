"""What changed in a worker's prefix cache, as its routers follow it.

Blocks have short names there: the first 64 bits of their hash.  A block hash is salted by tenant, model and adapter
(``stratos.core.block_hash``), so a name says nothing to those that do not know the salt; two blocks with one name would
only send a request to a worker that has less of its prompt than was thought.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratos.core.kv import KvIdentity

NAME_BYTES = 8


def block_name(block_hash: bytes) -> int:
    """The first 64 bits of a block hash."""
    return int.from_bytes(block_hash[:NAME_BYTES], "little")


def block_names(hashes: Iterable[bytes]) -> tuple[int, ...]:
    """Names of the blocks of a chain."""
    return tuple(map(block_name, hashes))


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

    def parts(self, max_names: int) -> Iterable[CacheChanges]:
        """The same, with at most so many stored names each."""
        yield CacheChanges(
            after=self.after,
            last=self.last,
            stored=self.stored[:max_names],
            removed=self.removed,
            is_dump=self.is_dump,
        )
        for begin in range(max_names, len(self.stored), max_names):
            yield CacheChanges(after=self.last, last=self.last, stored=self.stored[begin : begin + max_names])


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What block names at a model's workers are made of, besides salt, adapter and tokens."""

    identity: KvIdentity
    block_size: int
