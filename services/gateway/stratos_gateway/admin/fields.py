"""Fields of the admin API's bodies, checked; every failure is a 400 with ``param``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.keys import KeyTerms, check_networks, check_new_patterns
from stratos_gateway.admin.key_bounds import bounds_of

MAX_TEXT_CHARS = 256
MAX_SECONDS = 100 * 365 * 24 * 3600


def only(body: Mapping[str, Any], *names: str) -> None:
    """Refuse fields that there are not: a misspelt one must not be lost silently."""
    if unknown := sorted(body.keys() - set(names)):
        raise BadRequest(f"unknown field {unknown[0][:64]!r}", param=unknown[0][:64])


def text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    """A text of at most ``MAX_TEXT_CHARS`` printable characters."""
    found = body.get(name, default)
    if not isinstance(found, str) or len(found) > MAX_TEXT_CHARS or not (found.isprintable() or not found):
        raise BadRequest(f"{name} must be a text of at most {MAX_TEXT_CHARS} printable characters", param=name)
    return found


def seconds(body: Mapping[str, Any], name: str) -> int | None:
    """A whole number of seconds; ``None`` where it is absent."""
    found = body.get(name)
    if found is not None and (type(found) is not int or not 0 <= found <= MAX_SECONDS):
        raise BadRequest(f"{name} must be a whole number of seconds", param=name)
    return found


def key_terms(body: Mapping[str, Any], now_unix_s: float, maker: Tenant) -> KeyTerms:
    """Permissions of a new key; those that are left out are the bounds of who makes it."""
    try:
        role = Role(text(body, "role", Role.TENANT.value))
    except ValueError:
        raise BadRequest(f"role must be one of {', '.join(Role)}", param="role") from None
    bounds, expires_in_s = bounds_of(maker, role), seconds(body, "expires_in_s")
    return KeyTerms(
        role=role,
        models=check_new_patterns(body["models"]) if "models" in body else bounds.models,
        networks=check_networks(body["networks"]) if "networks" in body else bounds.networks,
        expires_unix_s=bounds.expires_unix_s if expires_in_s is None else int(now_unix_s) + expires_in_s,
    )
