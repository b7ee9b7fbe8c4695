"""Whose the blocks are that the two tiers hold under a hash, so that all of one tenant can be dropped.

A hash is salted, so it says nothing of its tenant, and it belongs to one tenant alone.  The tiers give hashes up in
many places; none of them tells this table.  Each new hash looks at two old ones instead and lets go of those that no
tier knows any more, so the table has at most about twice as many hashes as the tiers hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

_LOOKS = 2


class BlockOwners:
    """Tenants by block hash; guarded by the core's lock.

    Args:
        is_known: whether some tier holds a block with this hash.
    """

    def __init__(self, is_known: Callable[[bytes], bool]) -> None:
        self._is_known = is_known
        self._tenants: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tenants)

    def note(self, block_hash: bytes, tenant: str) -> None:
        """A tier holds a block of the tenant under this hash."""
        self._tenants[block_hash] = tenant
        for _ in range(_LOOKS):
            oldest, owner = self._tenants.popitem(last=False)
            if self._is_known(oldest):
                self._tenants[oldest] = owner

    def find(self, block_hash: bytes) -> str | None:
        return self._tenants.get(block_hash)

    def take(self, tenant: str) -> list[bytes]:
        """Every hash of a tenant, which the caller makes all tiers forget."""
        hashes = [block_hash for block_hash, owner in self._tenants.items() if owner == tenant]
        for block_hash in hashes:
            del self._tenants[block_hash]
        return hashes
