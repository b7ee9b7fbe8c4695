"""From the claims of a token that was checked to a tenant's name and a role: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidApiKey, PermissionDenied
from stratos.core.tenancy.patterns import is_allowed
from stratos.core.tenancy.roles import Role
from stratos.store.tenants import is_tenant_id
from stratos_gateway.oidc.settings import OidcIssuer

MAX_SUBJECT_CHARS = 256


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Whose token it is."""

    tenant: str
    """Its name or its id."""
    role: Role
    subject: str
    """For the audit log, and in the place of a key's id: "jwt:<issuer>#<sub>"."""


def identity_of(claims: Mapping[str, Any], issuer: OidcIssuer) -> TokenIdentity:
    """Read the identity from a token's claims.

    Raises:
        InvalidApiKey: there is no subject.
        PermissionDenied: there is no tenant, or none that the issuer may speak for.
    """
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
        raise InvalidApiKey("this token names no subject")
    tenant = _tenant(_claim(claims, issuer.tenant_claim), issuer)
    return TokenIdentity(tenant, _role(_claim(claims, issuer.role_claim), issuer), f"jwt:{issuer.issuer}#{subject}")


def _tenant(claim: object, issuer: OidcIssuer) -> str:
    """The id that is set for a claim, else the claim where its issuer may say it."""
    ids = issuer.ids
    if isinstance(claim, str) and claim in ids:
        return ids[claim]
    if not isinstance(claim, str) or not claim or not _may_say(claim, issuer):
        raise PermissionDenied("this token names no tenant that its issuer may speak for")
    return claim


def _may_say(claim: str, issuer: OidcIssuer) -> bool:
    """Ids are for the platform's issuer, and for one that is set up for them."""
    if is_tenant_id(claim):
        return issuer.is_platform or claim in issuer.ids.values()
    return is_allowed(issuer.names, claim)


def _role(value: object, issuer: OidcIssuer) -> Role:
    values = value if isinstance(value, list) else [value]
    found = [issuer.roles[item] for item in values if isinstance(item, str) and item in issuer.roles]
    role = Role.TENANT
    for other in found:
        role = other if other.includes(role) else role
    return Role.TENANT_ADMIN if role is Role.ADMIN and not issuer.is_platform else role


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """A claim of this whole name, else what dots lead to."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
