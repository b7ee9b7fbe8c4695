"""API keys: their text, how they are stored, how they are checked.

A key is ``sk-<key id: 12 hex>-<secret: 40 hex>``.  Redis holds an HMAC-SHA256 of the whole text under a pepper
that Redis never sees, so neither a dump of Redis nor the pepper alone gives a key away.

    stratos:key:<key id>      hash {mac, tenant, name, disabled}
    stratos:tenant:<tenant>   hash {cache_salt, priority_class}
    stratos:key-store         "1" once a key was made: an empty Redis is an outage, not the end of all keys
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from stratos.common.errors import BadRequest, InvalidApiKey
from stratos.core.requests.limits import NUM_PRIORITY_CLASSES
from stratos.core.tenant import Tenant

_KEY = re.compile(r"sk-(?P<key_id>[0-9a-f]{12})-[0-9a-f]{40}\Z")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
MARKER = "stratos:key-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as stored."""

    key_id: str
    name: str
    mac: str = field(repr=False)
    tenant: Tenant


def mint_key() -> str:
    """A fresh key."""
    return f"sk-{secrets.token_hex(6)}-{secrets.token_hex(20)}"


def parse_key(text: str) -> str:
    """The key id of a key.

    Raises:
        InvalidApiKey: it does not have the form of a key; the text is not repeated.
    """
    if match := _KEY.match(text):
        return match["key_id"]
    raise InvalidApiKey("the API key is malformed; keys look like sk-<12 hex digits>-<40 hex digits>")


def key_mac(pepper: str, text: str) -> str:
    """HMAC-SHA256 (hex) of a key under the pepper."""
    return hmac.new(pepper.encode(), text.encode(), hashlib.sha256).hexdigest()


def check_tenant(name: str) -> str:
    """Check the name of a tenant.

    Raises:
        BadRequest: empty, longer than 64 characters, or other characters than a-z 0-9 . _ -
    """
    if not _TENANT.match(name):
        raise BadRequest(
            "a tenant's name has 1 to 64 characters of a-z 0-9 . _ - and starts with a letter or digit", param="tenant"
        )
    return name


def check_priority_class(priority_class: int) -> int:
    """Check a tenant's priority class.

    Raises:
        BadRequest: no such class.
    """
    if not 0 <= priority_class < NUM_PRIORITY_CLASSES:
        raise BadRequest(f"a priority class is a number from 0 to {NUM_PRIORITY_CLASSES - 1}", param="priority_class")
    return priority_class


def redis_key(key_id: str) -> str:
    """Where a key is stored."""
    return f"stratos:key:{key_id}"


def redis_tenant(tenant: str) -> str:
    """Where a tenant is stored."""
    return f"stratos:tenant:{tenant}"
