"""API keys: their text, what is stored of them, under which pepper.

A key is ``sk-<key id: 12 hex>-<secret: 40 hex>``.  Only an HMAC-SHA256 of the whole text is stored, under a pepper that
the store never sees, so neither a dump of the store nor the pepper alone gives a key away.  Each key names its pepper,
so that a new pepper can be used for new keys while older ones still work.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratos.common.errors import BadRequest, InvalidApiKey
from stratos.core.requests.limits import NUM_PRIORITY_CLASSES

_KEY = re.compile(r"sk-(?P<key_id>[0-9a-f]{12})-[0-9a-f]{40}\Z")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
DEFAULT_PEPPER_ID = "1"
MIN_PEPPER_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as stored."""

    key_id: str
    name: str
    """For people."""
    tenant: str
    mac: str = field(repr=False)
    pepper_id: str = DEFAULT_PEPPER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Peppers:
    """The secrets under which keys are hashed: one for new keys, and older ones whose keys still work.

    Raises:
        BadRequest: one is too short.
    """

    current: str = field(repr=False)
    current_id: str = DEFAULT_PEPPER_ID
    older: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By id."""

    def __post_init__(self) -> None:
        if any(len(pepper) < MIN_PEPPER_CHARS for pepper in (self.current, *self.older.values())):
            message = f"a pepper of the API keys must have at least {MIN_PEPPER_CHARS} characters"
            raise BadRequest(message, param="pepper")

    def get(self, pepper_id: str) -> str | None:
        """The pepper of an id."""
        return self.current if pepper_id == self.current_id else self.older.get(pepper_id)


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
