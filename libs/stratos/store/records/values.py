"""Values of records as JSON and back, one form for each kind of record.

A tombstone's value is read by people only, so it is never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.adapter import Adapter, AdapterVersion
from stratos.core.files.digest import is_digest
from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.core.tenancy.plan import STANDARD, Plan
from stratos.core.tenancy.roles import Role
from stratos.store.content.forms import policy_from_json, policy_to_json, template_from_json, template_to_json
from stratos.store.data_keys import DataKeyRecord
from stratos.store.keys import KeyRecord, KeyTerms, check_networks, check_patterns
from stratos.store.models.alias_forms import alias_from_json
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.choice_forms import choice_from_json
from stratos.store.models.choice_rules import ChoiceRules
from stratos.store.models.forms import model_from_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.rollout_forms import rollout_from_json
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.plans import (
    check_plan_name,
    overrides_from_json,
    overrides_to_json,
    plan_from_json,
    plan_to_json,
)
from stratos.store.tenants import BlockRecord, TenantRecord

MIN_SALT_BYTES = 16
SECRET_FIELDS = frozenset({"mac", "cache_salt", "wrapped"})
"""Fields of values that no log and no list shows."""
_P99_FIELDS = frozenset({"ttft_p99_ms", "itl_p99_ms", "promise_window_s"})
_PLAIN = Plan()
_ADAPTER_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "base_model_digest": str, "uri": str, "digest": str, "rank": int, "alpha": (int, float), "target_modules": list,
    "num_bytes": int, "created_unix_s": int,
}  # fmt: skip
RecordValue = (
    ContentPolicy
    | PromptTemplate
    | Plan
    | DataKeyRecord
    | TenantRecord
    | KeyRecord
    | ModelRecord
    | AliasRecord
    | RolloutRecord
    | ChoiceRules
    | Adapter
    | BlockRecord
)


class MalformedValue(Exception):
    """A value cannot be read; the message never repeats it."""


def decode_value(kind: str, record_id: str, value: object) -> RecordValue:
    """Decode the value of a record.

    Raises:
        MalformedValue: a field is absent or has a value that cannot be.
    """
    if not isinstance(value, dict):
        raise MalformedValue("the value is not an object")
    try:
        return _DECODERS[kind](record_id, value)
    except BadRequest as error:
        raise MalformedValue(f"{error.param} cannot be") from None


def encode_policy(policy: ContentPolicy) -> dict[str, Any]:
    """A policy's record; its name is its id."""
    return policy_to_json(policy)


def encode_template(template: PromptTemplate) -> dict[str, Any]:
    """A template's record; owner and name are in its id."""
    return template_to_json(template)


def encode_plan(plan: Plan) -> dict[str, Any]:
    """A plan's record; without promises of p99s it is one that release 0.1 can read."""
    value = plan_to_json(plan)
    return {name: value[name] for name in value if name not in _P99_FIELDS or value[name] != getattr(_PLAIN, name)}


def encode_data_key(key: DataKeyRecord) -> dict[str, Any]:
    """A data key's record."""
    return {"platform_key_id": key.platform_key_id, "wrapped": key.wrapped.hex()}


def encode_tenant(tenant: TenantRecord) -> dict[str, Any]:
    """A tenant's record."""
    return {
        "cache_salt": tenant.cache_salt.hex(),
        "plan": tenant.plan,
        "overrides": overrides_to_json(tenant.overrides),
        "suspended": tenant.is_suspended,
        **({} if tenant.is_legacy else {"id": tenant.id}),
        **({} if tenant.built_in_version == 1 else {"built_in_version": tenant.built_in_version}),
        **({"closing": True} if tenant.is_closing else {}),
        **({"namesake": True} if tenant.is_namesake else {}),
    }


def encode_key(key: KeyRecord) -> dict[str, Any]:
    """A key's record."""
    terms = key.terms
    return {
        "tenant": key.tenant,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "mac": key.mac,
        "pepper_id": key.pepper_id,
        "role": terms.role.value,
        "models": list(terms.models),
        "networks": [str(network) for network in terms.networks],
        "expires_unix_s": terms.expires_unix_s,
        "suspended": key.is_suspended,
        "held_by_platform": key.is_held_by_platform,
        "created_unix_s": key.created_unix_s,
        "successor": key.successor,
    }


def encode_adapter(adapter: Adapter) -> dict[str, Any]:
    """An adapter's record; owner and name are in its id."""
    fields = asdict(adapter)
    past = {name: fields[name] for name in ("former", "is_rolled_back") if fields[name]}
    return {name: fields[name] for name in _ADAPTER_TYPES} | past


def encode_block(block: BlockRecord) -> dict[str, Any]:
    """A block's record."""
    return {"reason": block.reason}


def adapter_id(owner: str, name: str) -> str:
    """The record id of an adapter; ``owner`` is "" where every tenant may use it."""
    return f"{owner}/{name}"


def owner_and_name(record_id: str) -> tuple[str, str]:
    """The parts of a record id; records of other kinds than models, adapters, templates and blocks have none."""
    owner, _, name = record_id.rpartition("/")
    return owner, name


def _data_key(tenant: str, value: Mapping[str, Any]) -> DataKeyRecord:
    try:
        wrapped = bytes.fromhex(_text(value, "wrapped"))
    except ValueError:
        raise MalformedValue("wrapped is not hexadecimal") from None
    return DataKeyRecord(tenant_id=tenant, platform_key_id=_text(value, "platform_key_id"), wrapped=wrapped)


def _tenant(name: str, value: Mapping[str, Any]) -> TenantRecord:
    try:
        salt = bytes.fromhex(_text(value, "cache_salt"))
    except ValueError:
        raise MalformedValue("cache_salt is not hexadecimal") from None
    if len(salt) < MIN_SALT_BYTES:
        raise MalformedValue("cache_salt is too short")
    return TenantRecord(
        name=name,
        cache_salt=salt,
        plan=check_plan_name(str(value.get("plan", STANDARD.name))),
        overrides=overrides_from_json(value.get("overrides", {})),
        is_suspended=_flag(value, "suspended"),
        is_closing=_flag(value, "closing"),
        is_namesake=_flag(value, "namesake"),
        is_legacy="id" not in value,
        built_in_version=_version(value),
    )


def _key(key_id: str, value: Mapping[str, Any]) -> KeyRecord:
    mac = _text(value, "mac")
    if not is_digest(mac):
        raise MalformedValue("mac is not a SHA-256 in hexadecimal")
    try:
        role = Role(value.get("role", Role.TENANT))
    except ValueError:
        raise MalformedValue("there is no such role") from None
    expires = value.get("expires_unix_s")
    if expires is not None and type(expires) is not int:
        raise MalformedValue("expires_unix_s is no number")
    created = value.get("created_unix_s", 0)
    return KeyRecord(
        key_id=key_id,
        name=str(value.get("name", "")),
        tenant=_text(value, "tenant"),
        tenant_id=str(value.get("tenant_id", "")),
        mac=mac,
        pepper_id=_text(value, "pepper_id"),
        terms=KeyTerms(
            role=role,
            models=check_patterns(value.get("models", ["*"])),
            networks=check_networks(value.get("networks", [])),
            expires_unix_s=expires,
        ),
        is_suspended=_flag(value, "suspended"),
        # An older record does not say who suspended it.
        is_held_by_platform=_flag(value, "held_by_platform", default=_flag(value, "suspended")),
        created_unix_s=created if type(created) is int else 0,
        successor=str(value.get("successor", "")),
    )


def _adapter(record_id: str, value: Mapping[str, Any]) -> Adapter:
    for name, kind in _ADAPTER_TYPES.items():
        if not isinstance(value.get(name), kind) or isinstance(value[name], bool):
            raise MalformedValue(f"{name} is absent or of another type")
    if not value["digest"] or not value["base_model_digest"]:
        raise MalformedValue("a digest is empty")
    owner, name = owner_and_name(record_id)
    fields = {field: value[field] for field in _ADAPTER_TYPES}
    fields |= {"alpha": float(value["alpha"]), "target_modules": tuple(map(str, value["target_modules"]))}
    former = value.get("former", [])
    if not isinstance(former, list):
        raise MalformedValue("former is no list")
    fields |= {"former": tuple(map(_adapter_version, former)), "is_rolled_back": _flag(value, "is_rolled_back")}
    return Adapter(tenant=owner, name=name, **fields)


def _adapter_version(value: object) -> AdapterVersion:
    if not isinstance(value, dict):
        raise MalformedValue("a former version is no object")
    return AdapterVersion(**{name: _text(value, name) for name in ("digest", "base_model_digest", "uri")})


def _block(_: str, value: Mapping[str, Any]) -> BlockRecord:
    return BlockRecord(reason=str(value.get("reason", "")))


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise MalformedValue(f"{name} is absent or no text")
    return found


def _flag(value: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    found = value.get(name, default)
    if not isinstance(found, bool):
        raise MalformedValue(f"{name} is neither true nor false")
    return found


def _version(value: Mapping[str, Any]) -> int:
    found = value.get("built_in_version", 1)
    if type(found) is not int or found < 1:
        raise MalformedValue("built_in_version is no number from 1 on")
    return found


_DECODERS: Mapping[str, Callable[[str, Mapping[str, Any]], RecordValue]] = {
    "policy": policy_from_json,
    "template": template_from_json,
    "plan": plan_from_json,
    "data_key": _data_key,
    "tenant": _tenant,
    "key": _key,
    "model": model_from_json,
    "alias": alias_from_json,
    "rollout": rollout_from_json,
    "choice": choice_from_json,
    "adapter": _adapter,
    "block": _block,
}
