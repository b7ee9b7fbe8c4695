"""Content policies and prompt templates, checked before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.content import MAX_VERSIONS, ContentPolicy, PromptTemplate
from stratos.core.tenancy.plan import Plan
from stratos.store.content.forms import policy_from_json, template_from_json
from stratos.store.records.record import Kind, Record
from stratos.store.records.values import encode_policy, encode_template
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.tenancy.tenant_store import TenantStore
from stratos.store.tenants import TenantRecord
from stratos.text.filtering.rules import Rules
from stratos.text.tenant_templates import CompiledPrompt, check_defaults


def checked_policy(name: str, value: object) -> ContentPolicy:
    """A policy whose rules can be compiled.

    Raises:
        BadRequest: a field, or a rule, that cannot be.
    """
    policy = policy_from_json(name, value)
    Rules.of(policy)
    return policy


def checked_template(template_id: str, value: object) -> PromptTemplate:
    """A template of which every version can be rendered; raises like ``checked_policy``."""
    template = template_from_json(template_id, value)
    for version in template.versions.values():
        variables = frozenset[str]().union(*(CompiledPrompt(source).variables for source in version.sources))
        check_defaults(version.defaults, variables)
    return template


def merged(template_id: str, old: PromptTemplate | None, new: PromptTemplate) -> PromptTemplate:
    """Every version of both.

    Raises:
        BadRequest: a version would change, or there would be too many.
    """
    before = {} if old is None else old.versions
    for number, version in new.versions.items():
        if number in before and before[number] != version:
            text = f"template {template_id!r}: version {number} is stored and never changes; add another one"
            raise BadRequest(text, param="versions")
    versions = dict(sorted({**before, **new.versions}.items()))
    if len(versions) > MAX_VERSIONS:
        raise BadRequest(f"template {template_id!r}: at most {MAX_VERSIONS} versions", param="versions")
    return PromptTemplate(versions=versions)


class ContentRecords:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        writer: where records are stored, and who changes them.
    """

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    async def policies(self) -> dict[str, ContentPolicy]:
        """By name."""
        records = await self._writer.records.records(Kind.POLICY)
        return {r.id: r.value for r in sorted(records, key=_id) if isinstance(r.value, ContentPolicy)}

    async def templates(self) -> dict[str, PromptTemplate]:
        """By id."""
        records = await self._writer.records.records(Kind.TEMPLATE)
        return {r.id: r.value for r in sorted(records, key=_id) if isinstance(r.value, PromptTemplate)}

    async def put_policy(self, name: str, policy: ContentPolicy) -> bool:
        """Store a policy; false where it is stored already."""

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            return None if found is not None and found.value == policy else encode_policy(policy)

        return await self._writer.change(Kind.POLICY, name, "policy.put", edit)

    async def delete_policy(self, name: str) -> None:
        """Delete a policy.

        Raises:
            NotFound: there is none. BadRequest: a plan or a tenant has it.
        """
        records = await self._writer.records.records(Kind.PLAN, Kind.TENANT)
        if users := [record.id for record in records if _policy_of(record) == name]:
            raise BadRequest(f"policy {name!r} is that of {', '.join(users[:5])}", param="name")
        await self._writer.change(Kind.POLICY, name, "policy.delete", _bury)

    async def put_template(self, template_id: str, template: PromptTemplate) -> bool:
        """Add versions; false where all of them are stored already.

        Raises:
            BadRequest: a version would change.
            NotFound: there is no such tenant.
        """

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            old = found.value if found is not None and isinstance(found.value, PromptTemplate) else None
            new = merged(template_id, old, template)
            return None if new == old else encode_template(new)

        owner = await TenantStore(self._writer).ref(template_id.rpartition("/")[0])
        return await self._writer.change(
            Kind.TEMPLATE, template_id, "template.put", edit, tenant=owner, condition=owner.while_live
        )

    async def delete_template(self, template_id: str) -> None:
        """Delete all versions; raises ``NotFound``."""
        owner = await TenantStore(self._writer).ref_or_label(template_id.rpartition("/")[0])
        await self._writer.change(Kind.TEMPLATE, template_id, "template.delete", _bury, tenant=owner)


def check_policy_names(plans: Mapping[str, Plan], overrides: Mapping[str, Mapping[str, Any]], known: set[str]) -> None:
    """Refuse plans and tenants that name a policy which there is not.

    Raises:
        BadRequest: ``param`` says where.
    """
    named = {f"plans.{name}": plan.content_policy for name, plan in plans.items()}
    named |= {f"tenants.{name}": fields.get("content_policy", "") for name, fields in overrides.items()}
    for where, policy in named.items():
        if policy and policy not in known:
            raise BadRequest(f"{where}: there is no content policy {policy!r}", param=f"{where}.content_policy")


def _policy_of(record: Record) -> str:
    if isinstance(record.value, Plan):
        return record.value.content_policy
    return str(record.value.overrides.get("content_policy", "")) if isinstance(record.value, TenantRecord) else ""


def _bury(found: Record | None) -> Tombstone:
    if found is None or found.is_deleted:
        raise NotFound("there is nothing of this name")
    return Tombstone({})


def _id(record: Record) -> str:
    return record.id
