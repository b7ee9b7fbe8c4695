"""A key makes no key that may do what it may not do itself: role, models, networks, expiry.

The keys that an admin of the platform makes for customers are no keys of its own: where it may be used from, and until
when, bounds other keys of its role alone.  A token has no networks and no expiry here, since its issuer gives others.
"""

from __future__ import annotations

from stratos.common.errors import BadRequest, PermissionDenied
from stratos.core.tenancy.patterns import covers
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Network, Tenant
from stratos.store.keys import KeyTerms


def bounds_of(maker: Tenant, role: Role) -> KeyTerms:
    """The most that a key of a role may be allowed by ``maker``."""
    if maker.role is Role.ADMIN and role is not Role.ADMIN:
        return KeyTerms(role=Role.ADMIN)
    return KeyTerms(role=maker.role, models=maker.models, networks=maker.networks, expires_unix_s=maker.expires_unix_s)


def check_bounds(maker: Tenant, terms: KeyTerms) -> None:
    """Refuse terms that go beyond what ``maker`` may do.

    Raises:
        PermissionDenied: says which.
    """
    bounds = bounds_of(maker, terms.role)
    if not bounds.role.includes(terms.role):
        raise PermissionDenied(f"a key of the role {maker.role.value} makes none of {terms.role.value}")
    if not covers(bounds.models, terms.models):
        raise PermissionDenied("a key makes none for models that it may not use itself")
    if bounds.networks and not _are_within(terms.networks, bounds.networks):
        raise PermissionDenied("a key makes none for networks from which it may not be used itself")
    if bounds.expires_unix_s is not None and _ends_later(terms.expires_unix_s, bounds.expires_unix_s):
        raise PermissionDenied("a key makes none that works longer than itself")


def _are_within(networks: tuple[Network, ...], bounds: tuple[Network, ...]) -> bool:
    """Whether ``networks`` are parts of ``bounds``; none at all is everywhere."""
    return bool(networks) and all(any(_is_part(network, bound) for bound in bounds) for network in networks)


def _is_part(network: Network, bound: Network) -> bool:
    return network.version == bound.version and network.subnet_of(bound)  # type: ignore[arg-type]


def _ends_later(expires_unix_s: int | None, bound_unix_s: int) -> bool:
    return expires_unix_s is None or expires_unix_s > bound_unix_s


def check_stays(maker: Tenant, name: str, *, is_deleted: bool = False, is_suspended: bool = False) -> None:
    """Refuse to lock ``maker`` out, which may be the last one who could take that back; raises ``BadRequest``."""
    if name == maker.name and (is_deleted or is_suspended):
        what = "deleted" if is_deleted else "suspended"
        raise BadRequest(f"a tenant cannot be {what} with a key of its own", param="name")
