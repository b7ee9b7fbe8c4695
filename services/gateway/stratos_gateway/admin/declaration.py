"""Declaration of tenants in a file, and its difference from what is stored: pure.

    policies:  {name: {field: value, ...}, ...}
    templates: {name or tenant/name: {versions: {1: {text: ...}, 2: {messages: [{role: ..., text: ...}]}}}, ...}
    plans:     {name: {field: value, ...}, ...}
    tenants:   {name: {plan: name, overrides: {field: value}, suspended: false}, ...}

What the file does not name is left alone, versions of a template included: a file never deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stratos.common.errors import BadRequest
from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.core.tenancy.plan import BUILT_IN_PLANS, STANDARD, Plan
from stratos.store.content.forms import policy_to_json, template_to_json
from stratos.store.keys import check_tenant
from stratos.store.plans import overrides_from_json, overrides_to_json, plan_from_json, plan_to_json
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos.store.tenants import TenantRecord
from stratos_gateway.admin.content_records import check_policy_names, checked_policy, checked_template, merged
from stratos_gateway.http.row_stream import Sections

V = TypeVar("V")
MAX_ENTRIES = 100_000
_PARTS = ("policies", "templates", "plans", "tenants")
_TENANT_FIELDS = {"plan", "overrides", "suspended"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTerms:
    """Terms of one tenant in a file."""

    plan: str = STANDARD.name
    overrides: Mapping[str, Any]
    is_suspended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The state that a file wants."""

    plans: Mapping[str, Plan]
    tenants: Mapping[str, TenantTerms]
    policies: Mapping[str, ContentPolicy] = field(default_factory=dict)
    templates: Mapping[str, PromptTemplate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The state of the store, as far as a declaration names it."""

    plans: Mapping[str, Plan]
    """Plans with a record."""
    tenants: Mapping[str, TenantRecord]
    policies: Mapping[str, ContentPolicy]
    templates: Mapping[str, PromptTemplate]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredChange:
    """One record that is not as it should be."""

    kind: str
    name: str
    before: Mapping[str, Any] | None
    """``None`` where there is none yet."""
    after: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """A JSON form that shows only the fields that differ."""
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
        raise BadRequest(f"a declaration is an object of {', '.join(_PARTS)}", code="invalid_json")
    if unknown := sorted(map(str, body.keys() - set(_PARTS))):
        raise BadRequest(f"unknown field {unknown[0][:64]!r}", param=unknown[0][:64])
    plans = {name: plan_from_json(name, value) for name, value in _entries(body, "plans")}
    tenants = {check_tenant(name): _terms(name, value) for name, value in _entries(body, "tenants")}
    policies = {name: checked_policy(name, value) for name, value in _entries(body, "policies")}
    templates = {name: checked_template(name, value) for name, value in _entries(body, "templates")}
    return Declaration(plans=plans, tenants=tenants, policies=policies, templates=templates)


def differences(wanted: Declaration, stored: Stored) -> list[DeclaredChange]:
    """Changes from one state to the other, in the order in which records need one another.

    Args:
        wanted: what should be.
        stored: what there is.

    Raises:
        BadRequest: a tenant has a plan, or a plan a policy, that there is not; a version of a template would change.
    """
    plans, tenants = stored.plans, stored.tenants
    known = {*BUILT_IN_PLANS, *plans, *wanted.plans}
    overrides = {name: terms.overrides for name, terms in wanted.tenants.items()}
    check_policy_names(wanted.plans, overrides, {*stored.policies, *wanted.policies})
    for name, terms in wanted.tenants.items():
        if terms.plan not in known:
            raise BadRequest(f"tenant {name!r}: there is no plan {terms.plan[:64]!r}", param=f"tenants.{name}.plan")
    changes = _policy_changes(wanted, stored)
    changes += [
        DeclaredChange(
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
            changes.append(DeclaredChange(kind="tenant", name=name, before=old, after=new))
    return changes + _template_changes(wanted, stored)


def declared(snapshot: FollowedSnapshot) -> Sections:
    """Write what is stored as a declaration that would change nothing, entry by entry; later changes are not in it."""
    policies, templates, plans, tenants = map(snapshot.of_kind, (Kind.POLICY, Kind.TEMPLATE, Kind.PLAN, Kind.TENANT))
    return {
        "policies": ((r.id, policy_to_json(r.value)) for r in policies if isinstance(r.value, ContentPolicy)),
        "templates": ((r.id, template_to_json(r.value)) for r in templates if isinstance(r.value, PromptTemplate)),
        "plans": ((r.id, plan_to_json(r.value)) for r in plans if isinstance(r.value, Plan)),
        "tenants": ((r.id, _shown(tenant)) for r in tenants if (tenant := _open_tenant(r)) is not None),
    }


def stored_beside(wanted: Declaration, snapshot: FollowedSnapshot) -> Stored:
    """Find all that a declaration names: it costs what is in the file, however much else is stored."""
    plans = {*wanted.plans, *(terms.plan for terms in wanted.tenants.values())}
    policies = {*wanted.policies, *(plan.content_policy for plan in wanted.plans.values())}
    policies |= {str(terms.overrides.get("content_policy", "")) for terms in wanted.tenants.values()}
    tenants = _values(snapshot, Kind.TENANT, wanted.tenants, TenantRecord)
    return Stored(
        plans=_values(snapshot, Kind.PLAN, plans, Plan),
        tenants={name: tenant for name, tenant in tenants.items() if not tenant.is_closing},
        policies=_values(snapshot, Kind.POLICY, policies, ContentPolicy),
        templates=_values(snapshot, Kind.TEMPLATE, wanted.templates, PromptTemplate),
    )


def _values(snapshot: FollowedSnapshot, kind: Kind, names: Iterable[str], of: type[V]) -> dict[str, V]:
    found = {name: snapshot.get(kind, name) for name in names}
    return {name: record.value for name, record in found.items() if record is not None and isinstance(record.value, of)}


def _open_tenant(record: Record) -> TenantRecord | None:
    tenant = record.value
    return tenant if isinstance(tenant, TenantRecord) and not tenant.is_closing else None


def _policy_changes(wanted: Declaration, stored: Stored) -> list[DeclaredChange]:
    changes = []
    for name, policy in wanted.policies.items():
        old = stored.policies.get(name)
        if policy != old:
            before = None if old is None else policy_to_json(old)
            changes.append(DeclaredChange(kind="policy", name=name, before=before, after=policy_to_json(policy)))
    return changes


def _template_changes(wanted: Declaration, stored: Stored) -> list[DeclaredChange]:
    """After those of tenants: a template may be one of a new tenant."""
    changes = []
    for name, template in wanted.templates.items():
        found = stored.templates.get(name)
        new = merged(name, found, template)
        if new != found:
            shown = None if found is None else template_to_json(found)["versions"]
            changes.append(
                DeclaredChange(kind="template", name=name, before=shown, after=template_to_json(new)["versions"])
            )
    return changes


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
