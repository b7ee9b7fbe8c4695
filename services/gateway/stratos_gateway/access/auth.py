"""Keys and tokens -> tenants, and whether a key may be used from where a request comes from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Protocol

from stratos.common.errors import InvalidApiKey, PermissionDenied, StratosError
from stratos.core.tenant import Tenant

MAX_KEY_CHARS = 8192
"""API keys have 71; tokens of some issuers have thousands."""


Recall = Callable[[str, str, str], Awaitable[Tenant]]
"""Finds the tenant of this name and id, as its key of this id shows it now; raises like ``Authenticator``."""


class Authenticator(Protocol):
    """Looks a key up."""

    async def authenticate(self, key: str) -> Tenant:
        """The tenant that a key belongs to.

        Raises:
            InvalidApiKey: not a key that is known.
            DependencyDown: it cannot be looked up now.
        """
        ...

    def refusal(self, tenant: Tenant) -> StratosError | None:
        """Why a request that runs may not go on: its tenant or its key was suspended, revoked or deleted since."""
        ...


def bearer_key(headers: Mapping[str, str]) -> str:
    """The key of ``Authorization: Bearer``, or where that is absent of ``x-api-key``.

    Raises:
        InvalidApiKey: there is none, or the header is malformed.
    """
    return _key_of(headers.get("authorization"), headers.get("x-api-key", ""))


def sent_key(headers: Mapping[bytes, bytes]) -> str:
    """``bearer_key`` of the first headers of an ASGI scope; raises the same."""
    authorization = headers.get(b"authorization")
    given = None if authorization is None else str(authorization, "latin-1")
    return _key_of(given, str(headers.get(b"x-api-key", b""), "latin-1"))


def _key_of(authorization: str | None, other: str) -> str:
    if authorization is None:
        authorization = f"bearer {other}"
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise InvalidApiKey("no API key: send the header 'Authorization: Bearer sk-...', or 'x-api-key: sk-...'")
    if len(key) > MAX_KEY_CHARS:
        raise InvalidApiKey("this is not an API key")
    return key


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
