"""What a file of tenants says, and how it differs from what is stored: pure.

    plans:   {name: {field: value, ...}, ...}
    tenants: {name: {plan: name, overrides: {field: value}, suspended: false}, ...}

A plan or tenant that the file does not name is left alone: a file never deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import BUILT_IN_PLANS, STANDARD, Plan
from stratos.store.keys import check_tenant
from stratos.store.plans import overrides_from_json, overrides_to_json, plan_from_json, plan_to_json
from stratos.store.tenants import TenantRecord

MAX_ENTRIES = 100_000
_TENANT_FIELDS = {"plan", "overrides", "suspended"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTerms:
    """What a file says of one tenant."""

    plan: str = STANDARD.name
    overrides: Mapping[str, Any]
    is_suspended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What should be."""

    plans: Mapping[str, Plan]
    tenants: Mapping[str, TenantTerms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One plan or tenant that is not as it should be."""

    kind: str
    name: str
    before: Mapping[str, Any] | None
    """``None`` where there is none yet."""
    after: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """With the fields that differ alone."""
        before = self.before or {}
        differing = [name for name in self.after if name not in before or before[name] != self.after[name]]
        return {
            "kind": self.kind,
            "name": self.name,
            "action": "create" if self.before is None else "update",
            "changes": {name: {"before": before.get(name), "after": self.after[name]} for name in differing},
        }


def parse_declaration(body: object) -> Declaration:
    """A declaration, checked.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names it.
    """
    if not isinstance(body, dict):
        raise BadRequest("a declaration is an object with plans and tenants", code="invalid_json")
    if unknown := sorted(map(str, body.keys() - {"plans", "tenants"})):
        raise BadRequest(f"unknown field {unknown[0][:64]!r}", param=unknown[0][:64])
    plans = {name: plan_from_json(name, value) for name, value in _entries(body, "plans")}
    tenants = {check_tenant(name): _terms(name, value) for name, value in _entries(body, "tenants")}
    return Declaration(plans=plans, tenants=tenants)


def differences(wanted: Declaration, plans: Mapping[str, Plan], tenants: Mapping[str, TenantRecord]) -> list[Change]:
    """What has to change, plans first: tenants need them.

    Args:
        wanted: what should be.
        plans: those with a record.
        tenants: all of them.

    Raises:
        BadRequest: a tenant has a plan that there is not.
    """
    known = {*BUILT_IN_PLANS, *plans, *wanted.plans}
    for name, terms in wanted.tenants.items():
        if terms.plan not in known:
            raise BadRequest(f"tenant {name!r}: there is no plan {terms.plan[:64]!r}", param=f"tenants.{name}.plan")
    changes = [
        Change(
            kind="plan",
            name=name,
            before=plan_to_json(plans[name]) if name in plans else None,
            after=plan_to_json(plan),
        )
        for name, plan in wanted.plans.items()
        if plans.get(name) != plan
    ]
    for name, terms in wanted.tenants.items():
        old = _shown(tenants[name]) if name in tenants else None
        new = {
            "plan": terms.plan, "overrides": overrides_to_json(terms.overrides), "suspended": terms.is_suspended,
        }  # fmt: skip
        if old != new:
            changes.append(Change(kind="tenant", name=name, before=old, after=new))
    return changes


def declared(plans: Mapping[str, Plan], tenants: Mapping[str, TenantRecord]) -> dict[str, Any]:
    """What is stored, as a declaration that would change nothing."""
    return {
        "plans": {name: plan_to_json(plan) for name, plan in plans.items()},
        "tenants": {name: _shown(tenant) for name, tenant in tenants.items()},
    }


def _shown(tenant: TenantRecord) -> dict[str, Any]:
    return {
        "plan": tenant.plan, "overrides": overrides_to_json(tenant.overrides), "suspended": tenant.is_suspended,
    }  # fmt: skip


def _entries(body: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = {} if body.get(name) is None else body[name]
    if not isinstance(found, dict) or len(found) > MAX_ENTRIES or not all(isinstance(key, str) for key in found):
        raise BadRequest(f"{name} must be an object by name", param=name)
    return list(found.items())


def _terms(name: str, value: object) -> TenantTerms:
    where = f"tenants.{name}"
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if unknown := sorted(map(str, value.keys() - _TENANT_FIELDS)):
        raise BadRequest(f"{where}: unknown field {unknown[0][:64]!r}", param=where)
    plan, is_suspended = value.get("plan", STANDARD.name), value.get("suspended", False)
    if not isinstance(plan, str) or not isinstance(is_suspended, bool):
        raise BadRequest(f"{where}: plan is a name, suspended is true or false", param=where)
    overrides = overrides_from_json({} if value.get("overrides") is None else value["overrides"])
    return TenantTerms(plan=plan, overrides=overrides, is_suspended=is_suspended)
