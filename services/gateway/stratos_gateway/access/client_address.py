"""Whether a key may be used from where a request comes from."""

from __future__ import annotations

from ipaddress import ip_address

from stratos.common.errors import PermissionDenied
from stratos.core.tenant import Tenant


def check_address(tenant: Tenant, address: str) -> None:
    """Refuse a key that is used from elsewhere.

    Args:
        tenant: of the key.
        address: of the client, as the last trusted hop saw it.

    Raises:
        PermissionDenied: the key has a list of networks, and the client is in none of them, or not known.
    """
    if tenant.networks and not _is_in(address, tenant):
        raise PermissionDenied("this API key may not be used from this address")


def _is_in(address: str, tenant: Tenant) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in tenant.networks)
