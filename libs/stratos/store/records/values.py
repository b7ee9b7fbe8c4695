"""What a record holds, as JSON and back: tenants, keys and adapters.

A tombstone's value is read by people only, so it is never decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.adapter import Adapter
from stratos.core.tenant import Tenant
from stratos.store.keys import KeyRecord, check_priority_class

MIN_SALT_BYTES = 16
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_ADAPTER_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "base_model_digest": str, "uri": str, "digest": str, "rank": int, "alpha": (int, float), "target_modules": list,
    "num_bytes": int, "created_unix_s": int,
}  # fmt: skip


class MalformedValue(Exception):
    """A value cannot be read; the message never repeats it."""


def decode_value(kind: str, record_id: str, value: object) -> Tenant | KeyRecord | Adapter:
    """The tenant, key or adapter that a record holds.

    Raises:
        MalformedValue: a field is absent or has a value that cannot be.
    """
    if not isinstance(value, dict):
        raise MalformedValue("the value is not an object")
    return _DECODERS[kind](record_id, value)


def encode_tenant(tenant: Tenant) -> dict[str, Any]:
    """A tenant's record."""
    return {"cache_salt": tenant.cache_salt.hex(), "priority_class": tenant.priority_class}


def encode_key(key: KeyRecord) -> dict[str, Any]:
    """A key's record."""
    return {"tenant": key.tenant, "name": key.name, "mac": key.mac, "pepper_id": key.pepper_id}


def encode_adapter(adapter: Adapter) -> dict[str, Any]:
    """An adapter's record; owner and name are in its id."""
    fields = asdict(adapter)
    return {name: fields[name] for name in _ADAPTER_TYPES}


def adapter_id(owner: str, name: str) -> str:
    """The record id of an adapter; ``owner`` is "" where every tenant may use it."""
    return f"{owner}/{name}"


def owner_and_name(record_id: str) -> tuple[str, str]:
    """The parts of a record id; records of other kinds than adapters have no owner."""
    owner, _, name = record_id.rpartition("/")
    return owner, name


def _tenant(name: str, value: Mapping[str, Any]) -> Tenant:
    salt, priority_class = _text(value, "cache_salt"), value.get("priority_class")
    try:
        salt_bytes = bytes.fromhex(salt)
    except ValueError:
        raise MalformedValue("cache_salt is not hexadecimal") from None
    if len(salt_bytes) < MIN_SALT_BYTES:
        raise MalformedValue("cache_salt is too short")
    if not isinstance(priority_class, int):
        raise MalformedValue("priority_class is not a number")
    try:
        check_priority_class(priority_class)
    except BadRequest as error:
        raise MalformedValue(error.message) from None
    return Tenant(name=name, cache_salt=salt_bytes, priority_class=priority_class)


def _key(key_id: str, value: Mapping[str, Any]) -> KeyRecord:
    mac = _text(value, "mac")
    if not _HEX_DIGEST.match(mac):
        raise MalformedValue("mac is not a SHA-256 in hexadecimal")
    return KeyRecord(
        key_id=key_id,
        name=str(value.get("name", "")),
        tenant=_text(value, "tenant"),
        mac=mac,
        pepper_id=_text(value, "pepper_id"),
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
    return Adapter(tenant=owner, name=name, **fields)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise MalformedValue(f"{name} is absent or no text")
    return found


_DECODERS: Mapping[str, Callable[[str, Mapping[str, Any]], Tenant | KeyRecord | Adapter]] = {
    "tenant": _tenant,
    "key": _key,
    "adapter": _adapter,
}
