"""Records as the admin API shows them: no MAC, no salt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.core.tenancy.plan import BUILT_IN_PLANS, Plan
from stratos.store.content.forms import policy_to_json, template_to_json
from stratos.store.data_keys import DataKeyRecord
from stratos.store.key_store import ListedKey
from stratos.store.plans import overrides_to_json, plan_to_json
from stratos.store.records.audit import AuditEntry
from stratos.store.records.record import Record
from stratos.store.records.values import SECRET_FIELDS, encode_key
from stratos.store.tenants import BlockRecord, TenantRecord


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
        "namesake": tenant.is_namesake,
    }


def key_view(key: ListedKey, last_use_unix_s: int | None) -> dict[str, Any]:
    """A key."""
    shown = {"key_id": key.key_id, "tenant": key.tenant, "name": key.name, "revoked": key.disabled}
    if key.record is not None:
        shown |= {name: value for name, value in encode_key(key.record).items() if name not in SECRET_FIELDS}
    return shown | {"last_use_unix_s": last_use_unix_s}


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """An entry of the audit log."""
    milliseconds = entry.entry_id.partition("-")[0]
    return {**asdict(entry), "at_unix_ms": int(milliseconds) if milliseconds.isdecimal() else None}


def record_view(record: Record) -> dict[str, Any]:
    """A tenant, block, policy, template or data key that is there."""
    value = record.value
    if isinstance(value, TenantRecord):
        return tenant_view(value)
    if isinstance(value, BlockRecord):
        return {"what": record.id, "reason": value.reason}
    if isinstance(value, ContentPolicy):
        return {"name": record.id, **policy_to_json(value)}
    if isinstance(value, PromptTemplate):
        return {"name": record.id, **template_to_json(value)}
    assert isinstance(value, DataKeyRecord), "the other kinds have views of their own"
    return {"tenant_id": value.tenant_id, "platform_key_id": value.platform_key_id}
