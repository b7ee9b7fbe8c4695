"""From which address a request comes, and whether its key may be used from there."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from starlette.requests import Request

from stratos.common.errors import PermissionDenied
from stratos.core.tenant import Network, Tenant


def client_address(request: Request, trusted_proxies: Sequence[Network]) -> str:
    """The client's address; empty where it is not known.

    ``X-Forwarded-For`` counts as far as trusted proxies have written it: each of them appends the address that it
    was called from, so the first address from the right that is no proxy's is the client's.
    """
    peer = request.client.host if request.client is not None else ""
    hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
    while hops and _is_in(peer, trusted_proxies):
        peer = hops.pop()
    return peer


def check_address(tenant: Tenant, request: Request, trusted_proxies: Sequence[Network]) -> None:
    """Refuse a key that is used from elsewhere.

    Raises:
        PermissionDenied: the key has a list of networks, and the client is in none of them.
    """
    if tenant.networks and not _is_in(client_address(request, trusted_proxies), tenant.networks):
        raise PermissionDenied("this API key may not be used from this address")


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in networks)
