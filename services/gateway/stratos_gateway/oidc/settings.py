"""Issuers whose tokens are taken, and what their claims mean here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, MinLen

from stratos.core.tenancy.roles import Role
from stratos.store.tenants import is_tenant_id

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with a public key alone: with a shared secret, who checks a token could make one."""
EVERY_TENANT = "*"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcIssuer:
    """One issuer."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    issuer: Annotated[str, MinLen(1)]
    """Exact value of ``iss``; its keys are found at <issuer>/.well-known/openid-configuration."""
    audience: Annotated[str, MinLen(1)]
    """``aud`` must hold it: a token for another service is none for this one."""
    jwks_url: str = ""
    """Address of the keys themselves, for an issuer without discovery."""
    ca_path: Path | None = None
    """PEM with the CAs of these addresses; unset takes the system's."""
    algorithms: Annotated[tuple[Algorithm, ...], MinLen(1)] = ("RS256", "ES256")
    """Signatures that are taken; what a token's header says is never believed."""
    tenant_claim: Annotated[str, MinLen(1)] = "tenant"
    """Claim with the tenant's name, or its id; dots lead into objects where no claim has the whole name."""
    role_claim: Annotated[str, MinLen(1)] = "roles"
    """Claim with a text, or a list of texts, for which ``roles`` has a role."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Value of that claim -> role; the highest counts, and values that are not named here count as "tenant"."""
    tenants: Annotated[tuple[str, ...], MinLen(1)]
    """Names and patterns (*) of tenants for which it may speak: an issuer of one customer must not name another. "*" is
    the platform's own: every tenant, and the role admin. "acme=tn_..." is the tenant acme of this id and no later one
    of its name; a tenant whose name another one had before is reached in no other way."""

    @property
    def ids(self) -> Mapping[str, str]:
        """Id of each tenant that is named with it, by name."""
        return dict(text.split("=", 1) for text in self.tenants if "=" in text)

    @property
    def names(self) -> tuple[str, ...]:
        """The others: names and patterns."""
        return tuple(text for text in self.tenants if "=" not in text)

    @property
    def is_platform(self) -> bool:
        """It may speak for every tenant, and for the platform itself."""
        return EVERY_TENANT in self.tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """OpenID Connect: ``Authorization: Bearer <JWT>`` beside API keys."""

    issuers: tuple[OidcIssuer, ...] = ()
    """Whose tokens are taken, as JSON; empty takes none."""
    refresh_s: Annotated[float, Gt(0)] = 300.0
    """Seconds between two fetches of an issuer's keys; a token with a key that is not known asks for one at once."""
    min_refresh_gap_s: Annotated[float, Gt(0)] = 5.0
    """Seconds between two fetches at least, however many such tokens come."""
    max_age_s: Annotated[float, Gt(0)] = 86400.0
    """How long keys are believed while their issuer does not answer."""
    timeout_s: Annotated[float, Gt(0)] = 5.0
    """Longest time of one fetch."""
    leeway_s: Annotated[float, Ge(0)] = 30.0
    """How far clocks may differ, at ``exp``, ``nbf`` and ``iat``."""


def check_oidc(config: OidcConfig) -> None:
    """Check what pydantic does not see.

    Raises:
        ValueError: an address that is neither https nor on this machine, an issuer that is there twice, one of some
            tenants that would make admins of the platform, or an id that is none.
    """
    for issuer in config.issuers:
        check_url(issuer.jwks_url or issuer.issuer)
        if Role.ADMIN in issuer.roles.values() and not issuer.is_platform:
            raise ValueError(
                f'{issuer.issuer[:200]!r}: the role admin is that of an issuer whose tenants are "*", by word'
            )
        for name, tenant_id in issuer.ids.items():
            if not name or "*" in name or not is_tenant_id(tenant_id):
                raise ValueError(f"{f'{name}={tenant_id}'[:200]!r}: a tenant and its id are written as acme=tn_...")
    if len({issuer.issuer for issuer in config.issuers}) < len(config.issuers):
        raise ValueError("an issuer appears twice")


def check_url(url: str) -> str:
    """Keys that come over plain HTTP could be anyone's.

    Raises:
        ValueError: neither https nor on this machine.
    """
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not is_safe or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{url[:200]!r}: the address of an issuer begins with https://")
    return url
