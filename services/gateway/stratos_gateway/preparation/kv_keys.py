"""Keys under which workers seal a tenant's KV on disk: a sub-key of its data key, sent with each of its requests."""

from __future__ import annotations

from collections.abc import Callable

from stratos.core.tenancy.plan import CachePolicy
from stratos.core.tenant import Tenant
from stratos.store.data_keys import Purpose


def no_kv_key(tenant: Tenant) -> bytes:
    """Key of every tenant at a gateway without a platform key: none."""
    return b""


def kv_keys(find: Callable[[str, Purpose], bytes | None]) -> Callable[[Tenant], bytes]:
    """The key of a tenant, empty where it has none, or its plan lets no request find the KV of another.

    Args:
        find: the sub-key of a tenant, by its id.
    """

    def kv_key(tenant: Tenant) -> bytes:
        is_kept = tenant.plan.cache_policy is not CachePolicy.OFF
        return find(tenant.id, Purpose.KV_ON_DISK) or b"" if is_kept else b""

    return kv_key
