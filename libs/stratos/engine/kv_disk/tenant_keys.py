"""Keys of tenants for KV on disk, as their requests bring them: in memory alone, of those that came lately."""

from __future__ import annotations

from collections import OrderedDict

from stratos.engine.kv_disk.block_seal import KEY_BYTES

MAX_TENANTS = 4096
"""Beyond it the tenant that came longest ago has no key here until its next request."""


class TenantKeys:
    """Guarded by the core's lock."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, bytes] = OrderedDict()

    def note(self, tenant: str, key: bytes) -> None:
        """A request of the tenant came with this key; an empty one says that it has none any more."""
        if not tenant or len(key) != KEY_BYTES:
            self._keys.pop(tenant, None)
            return
        self._keys[tenant] = key
        self._keys.move_to_end(tenant)
        while len(self._keys) > MAX_TENANTS:
            self._keys.popitem(last=False)

    def find(self, tenant: str | None) -> bytes | None:
        return None if tenant is None else self._keys.get(tenant)

    def forget(self, tenant: str) -> None:
        """The tenant was deleted."""
        self._keys.pop(tenant, None)
