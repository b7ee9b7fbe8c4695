"""API keys: their text, what is stored of them, under which pepper.

A key is ``sk-<key id: 12 hex>-<secret: 40 hex>-<checksum: 8 hex>``.  Only an HMAC-SHA256 of the whole text is stored,
under a pepper that the store never sees, so neither a dump of the store nor the pepper alone gives a key away.  Each
key names its pepper, so that a new pepper can be used for new keys while older ones still work.

The checksum is the beginning of the SHA-256 of the text before it.  It protects nothing: with it a scanner for leaked
secrets tells a key from other text without asking us, and a mistyped key is refused without a look at the store.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from stratos.common.errors import BadRequest, InvalidApiKey
from stratos.core.tenancy.names import check_name
from stratos.core.tenancy.patterns import OLD_SIGNS
from stratos.core.tenancy.plan import ALL_MODELS
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Network
from stratos.store.tenants import TenantRef

_KEY = re.compile(r"(?P<body>sk-(?P<key_id>[0-9a-f]{12})-[0-9a-f]{40})-(?P<checksum>[0-9a-f]{8})\Z")
DEFAULT_PEPPER_ID = "1"
MIN_PEPPER_CHARS = 16
MAX_NETWORKS = 64
MAX_PATTERNS = 256
"""Of a key that is there already."""
MAX_NEW_PATTERNS = 16
MAX_STARS = 2
MAX_PATTERN_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTerms:
    """Rights of a key, and how long it has them."""

    role: Role = Role.TENANT
    models: tuple[str, ...] = ALL_MODELS
    """Models of its tenant's plan that it may use."""
    networks: tuple[Network, ...] = ()
    """Where it may be used from; empty is everywhere."""
    expires_unix_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as stored."""

    key_id: str
    name: str
    """For people."""
    tenant: str
    """Name of its owner."""
    tenant_id: str = ""
    """Id of its owner; older keys have none."""
    mac: str = field(repr=False)
    pepper_id: str = DEFAULT_PEPPER_ID
    terms: KeyTerms = KeyTerms()
    is_suspended: bool = False
    is_held_by_platform: bool = False
    """The platform has suspended it: its tenant cannot resume it."""
    created_unix_s: int = 0
    successor: str = ""
    """Id of the key that a rotation made to follow it."""

    @property
    def owner(self) -> TenantRef:
        """Name and id, as far as it names one."""
        return TenantRef(self.tenant, self.tenant_id)


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
    return with_checksum(f"sk-{secrets.token_hex(6)}-{secrets.token_hex(20)}")


def with_checksum(body: str) -> str:
    """A key from its text without the checksum."""
    return f"{body}-{hashlib.sha256(body.encode()).hexdigest()[:8]}"


def parse_key(text: str) -> str:
    """The key id of a key.

    Raises:
        InvalidApiKey: it does not have the form of a key, or is mistyped; the text is not repeated.
    """
    if (match := _KEY.match(text)) and with_checksum(match["body"]) == text:
        return match["key_id"]
    raise InvalidApiKey("the API key is malformed; keys look like sk-<12 hex digits>-<40 hex digits>-<checksum>")


def key_mac(pepper: str, text: str) -> str:
    """HMAC-SHA256 (hex) of a key under the pepper."""
    return hmac.digest(pepper.encode(), text.encode(), "sha256").hex()


def check_tenant(name: str) -> str:
    """Check the name of a tenant; raises ``BadRequest``."""
    return check_name(name, "tenant")


def check_networks(texts: object) -> tuple[Network, ...]:
    """Addresses and networks (CIDR) that a key may be used from.

    Raises:
        BadRequest: not a list of them, or too many.
    """
    if not isinstance(texts, list | tuple) or len(texts) > MAX_NETWORKS:
        raise BadRequest(f"networks must be a list of at most {MAX_NETWORKS} addresses or CIDRs", param="networks")
    try:
        return tuple(ip_network(text) for text in texts if _is_text(text))
    except ValueError as error:
        raise BadRequest(f"networks: {error}"[:200], param="networks") from None


def check_patterns(names: object) -> tuple[str, ...]:
    """Names of models and adapters, * for any characters.

    Raises:
        BadRequest: not a list of them, or too many.
    """
    is_list = isinstance(names, list | tuple) and len(names) <= MAX_PATTERNS
    if not is_list or not all(isinstance(n, str) and 0 < len(n) <= MAX_PATTERN_CHARS for n in names):  # type: ignore[attr-defined]
        raise BadRequest(f"models must be a list of at most {MAX_PATTERNS} names", param="models")
    return tuple(names)  # type: ignore[arg-type]


def check_new_patterns(names: object) -> tuple[str, ...]:
    """Names of models and adapters of a key that is made now: few, so that no request has to walk many.

    Raises:
        BadRequest: not a list of them, too many, or a pattern with other signs or more stars.
    """
    patterns = check_patterns(names)
    if len(patterns) > MAX_NEW_PATTERNS:
        raise BadRequest(f"models must be a list of at most {MAX_NEW_PATTERNS} names", param="models")
    if any(pattern.count("*") > MAX_STARS or not OLD_SIGNS.isdisjoint(pattern) for pattern in patterns):
        raise BadRequest(f"models: a pattern has at most {MAX_STARS} stars, and no other signs", param="models")
    return patterns


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        raise ValueError("an address must be text")
    return True
