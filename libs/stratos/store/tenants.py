"""A tenant as stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratos.core.tenancy.plan import STANDARD, Plan


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


def adapter_scope(owner: str) -> str:
    """Owner part of the record id of an adapter's block."""
    return f"adapter:{owner}"
