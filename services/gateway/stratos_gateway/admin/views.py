"""Records as the admin API shows them: no MAC, no salt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stratos.core.tenancy.plan import BUILT_IN_PLANS, Plan
from stratos.store.key_store import ListedKey
from stratos.store.plans import overrides_to_json, plan_to_json
from stratos.store.records.audit import AuditEntry
from stratos.store.records.values import SECRET_FIELDS, encode_key
from stratos.store.tenants import TenantRecord


def plan_view(plan: Plan) -> dict[str, Any]:
    """A plan, and whether it is as it was built."""
    return {"name": plan.name, **plan_to_json(plan), "built_in": BUILT_IN_PLANS.get(plan.name) == plan}


def tenant_view(tenant: TenantRecord) -> dict[str, Any]:
    """A tenant."""
    return {
        "name": tenant.name,
        "id": tenant.id,
        "plan": tenant.plan,
        "built_in_version": tenant.built_in_version,
        "overrides": overrides_to_json(tenant.overrides),
        "suspended": tenant.is_suspended,
        "closing": tenant.is_closing,
    }


def key_view(key: ListedKey, last_use: Mapping[str, int]) -> dict[str, Any]:
    """A key; ``last_use`` is by key id, seconds since the epoch."""
    shown = {"key_id": key.key_id, "tenant": key.tenant, "name": key.name, "revoked": key.disabled}
    if key.record is not None:
        shown |= {name: value for name, value in encode_key(key.record).items() if name not in SECRET_FIELDS}
    return shown | {"last_use_unix_s": last_use.get(key.key_id)}


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """An entry of the audit log."""
    milliseconds = entry.entry_id.partition("-")[0]
    return {**asdict(entry), "at_unix_ms": int(milliseconds) if milliseconds.isdecimal() else None}
