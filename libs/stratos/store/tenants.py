"""A tenant as stored, and its id.

Whatever belongs to a tenant goes by its id: keys, audit entries, the ledger, limits, caches.  Its name is a label,
which another tenant may have after its deletion.  The id follows from the salt of its caches, which is drawn with the
record and gone with it.  So a record that was written before tenants had ids has one as well, and the scripts of the
store find it without being told.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratos.common.errors import NotFound
from stratos.core.tenancy.plan import STANDARD, Plan

ID_PREFIX = "tn_"
"""No tenant's name has an underscore, so an id is never a name."""
ID_SALT_HEAD = "stratos tenant "
ID_DIGITS = 20
_ID = re.compile(f"{ID_PREFIX}[0-9a-f]{{{ID_DIGITS}}}")


def is_tenant_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


class Condition(enum.StrEnum):
    """State of a tenant without which a write of what belongs to it is refused, within the store's script."""

    NONE = ""
    LIVE = "live"
    """It is there, of the id that is meant, and is not being deleted."""
    SAME = "same"
    """It is there, of the id that is meant; it may be closing."""


@dataclass(frozen=True, slots=True)
class TenantRef:
    """One tenant and no other one of its name, before or after it."""

    name: str
    id: str

    @property
    def while_live(self) -> Condition:
        """Condition on a write of what belongs to it; where no tenant is known there is nothing to ask for."""
        return Condition.LIVE if self.id else Condition.NONE


def unknown_tenant(name: str) -> NotFound:
    """There is no tenant of this name, or none that the caller may know of."""
    return NotFound(f"there is no tenant {name[:64]!r}")


def tenant_id(cache_salt: bytes) -> str:
    """The id of the tenant with this salt; ``records.scripts`` has the same rule in Lua, which knows SHA-1 alone."""
    text = ID_SALT_HEAD + cache_salt.hex()
    return ID_PREFIX + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:ID_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """Record of a tenant, without its keys."""

    name: str
    cache_salt: bytes = field(repr=False)
    """Drawn with the record; a tenant that is made again after its deletion gets another one."""
    plan: str = STANDARD.name
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``Plan`` that differ for this tenant."""
    is_suspended: bool = False
    """Its requests are refused until it is resumed."""
    is_closing: bool = False
    """It is being deleted: its keys do not work, and nothing is written for it any more."""
    built_in_version: int = 1
    """Version of the built-in plans when it was given its plan: newer ones change nothing for it."""
    is_legacy: bool = False
    """Made before tenants had ids: keys and a ledger without an id that have its name are its own."""
    is_namesake: bool = False
    """Another tenant had its name before: what names tenants outside, as tokens do, may mean that one."""
    id: str = field(init=False)
    """Its identity, for good."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", tenant_id(self.cache_salt))

    @property
    def ref(self) -> TenantRef:
        """Name and id."""
        return TenantRef(self.name, self.id)

    def has_key(self, owner: TenantRef) -> bool:
        """Whether a key with this owner is one of the tenant; older keys name no id."""
        return owner.name == self.name and (owner.id == self.id or (self.is_legacy and not owner.id))

    def apply_to(self, plan: Plan) -> Plan:
        """The tenant's own terms on a plan."""
        return replace(plan, **self.overrides) if self.overrides else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """A model or adapter that is refused for now; its record id says which one."""

    reason: str = ""
    """For people of the platform; clients do not see it."""


MODEL_SCOPE = "model"


def block_id(name: str, owner: str | None = None) -> str:
    """The record id of a block.

    Args:
        name: as clients write it.
        owner: tenant of an adapter, "" for an adapter of all tenants; ``None`` means a base model.
    """
    return f"{MODEL_SCOPE if owner is None else adapter_scope(owner)}/{name}"


def owner_of_block(record_id: str) -> str:
    """Tenant whose adapter a block names; "" for base models and adapters of all tenants."""
    scope = record_id.rpartition("/")[0]
    return scope.removeprefix(adapter_scope("")) if scope.startswith(adapter_scope("")) else ""


def adapter_scope(owner: str) -> str:
    """Owner part of the record id of an adapter's block."""
    return f"adapter:{owner}"
