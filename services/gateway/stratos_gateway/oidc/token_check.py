"""Checks a token: form, issuer, key, signature, times, audience, then what its claims mean.

Nothing that a token says about itself is believed before its signature is checked: its issuer and its key id only
choose among what is set and was fetched here, its algorithm must be one that is set for that issuer, and addresses or
keys in its header are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jwt
from jwt.exceptions import ExpiredSignatureError, ImmatureSignatureError, PyJWTError

from stratos.common.errors import DependencyDown, InvalidApiKey, PermissionDenied
from stratos.core.tenant import Tenant
from stratos.store.tenants import is_tenant_id
from stratos_gateway.oidc.claims import identity_of
from stratos_gateway.oidc.issuer_keys import IssuerKeys

_log = logging.getLogger(__name__)
_REQUIRED = ["exp", "iss", "aud", "sub"]
_MALFORMED = (PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions of PyJWT for tokens that are made to break it."""


class Tenants(Protocol):
    """Where tenants are looked up."""

    async def find(self, name: str) -> Tenant | None:
        """A tenant; raises ``PermissionDenied`` and ``DependencyDown``."""
        ...

    async def find_id(self, tenant_id: str) -> Tenant | None:
        """The same by its id."""
        ...


class TokenCheck:
    """Finds the tenant of a token.

    Args:
        issuers: their keys.
        tenants: where tenants are looked up; a token makes none.
        leeway_s: how far clocks may differ.
    """

    def __init__(self, issuers: Sequence[IssuerKeys], tenants: Tenants, leeway_s: float) -> None:
        self._issuers = {keys.issuer.issuer: keys for keys in issuers}
        self._tenants = tenants
        self._leeway_s = leeway_s

    async def authenticate(self, text: str) -> Tenant:
        """The tenant of a token.

        Raises:
            InvalidApiKey: malformed, of another issuer, with a wrong signature, expired, or for another audience.
            PermissionDenied: it names no tenant, one that is suspended, or only the name of one that may not be meant.
            DependencyDown: its issuer's keys, or its tenant, are not known here now.
        """
        header, claims = _unverified(text)
        issuer = claims.get("iss")
        keys = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if keys is None:
            raise InvalidApiKey("this token is of no issuer that is known here")
        identity = identity_of(await self._verify(text, header, keys), keys.issuer)
        is_id = is_tenant_id(identity.tenant)
        tenant = await (self._tenants.find_id if is_id else self._tenants.find)(identity.tenant)
        if tenant is None:
            raise PermissionDenied("this token names a tenant that does not exist")
        if tenant.is_namesake and not is_id:  # the token may mean the one that had the name before
            raise PermissionDenied("another tenant had this name before: this one is reached by its id alone")
        return replace(tenant, key_id=identity.subject, role=identity.role)

    async def _verify(self, text: str, header: Mapping[str, Any], keys: IssuerKeys) -> dict[str, Any]:
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm not in keys.issuer.algorithms or not isinstance(key_id, str) or {"crit", "b64"} & header.keys():
            raise InvalidApiKey("this token is signed in a way that is not taken here")
        key = await keys.find(key_id, algorithm)
        if key is None and not keys.is_known:
            raise DependencyDown(f"the keys of the issuer {keys.issuer.issuer} are not known now")
        if key is None:
            raise InvalidApiKey("this token is signed with a key that its issuer does not have")
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=keys.issuer.audience,
                issuer=keys.issuer.issuer,
                leeway=self._leeway_s,
                options={"require": _REQUIRED},
            )
        except ExpiredSignatureError:
            raise InvalidApiKey("this token has expired") from None
        except ImmatureSignatureError:
            raise InvalidApiKey("this token is not valid yet") from None
        except _MALFORMED as error:
            _log.debug("a token is refused: %s", type(error).__name__)
            raise InvalidApiKey("this token is not valid here") from None
        return claims


def is_token(text: str) -> bool:
    """Whether a credential has the form of a JWT; no API key has."""
    return text.count(".") == 2


def _unverified(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Header and claims as the token says them."""
    try:
        found = jwt.decode_complete(text, options={"verify_signature": False})
        return found["header"], found["payload"]
    except _MALFORMED:
        raise InvalidApiKey("this token is malformed") from None
