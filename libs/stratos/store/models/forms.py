"""Records of models as JSON and back, and the form of their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.core.files.digest import is_digest
from stratos.store.models.model_record import ModelRecord

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63}){0,3}\Z")
_ADAPTER = TypeAdapter(with_config(ConfigDict(extra="forbid"))(ModelRecord))


def model_id(name: str, digest: str) -> str:
    """The record id of a revision; its owner is the name that it serves."""
    return f"{name}/{digest}"


def check_model_name(name: str) -> str:
    """A name that a model can have; raises ``BadRequest``."""
    if not _NAME.match(name):
        raise BadRequest(
            "a model's name has parts of at most 64 characters of a-z A-Z 0-9 . _ - with a slash between them",
            param="name",
        )
    return name


def model_from_json(record_id: str, value: object) -> ModelRecord:
    """The revision that an object says; fields it lacks have their defaults.

    Args:
        record_id: as ``model_id`` makes it.
        value: fields without name and digest.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    name, _, digest = record_id.rpartition("/")
    check_model_name(name)
    if not isinstance(value, dict) or not {"name", "digest"}.isdisjoint(value):
        raise BadRequest("a model is an object of its fields", param="model")
    fields = {**value, "name": name, "digest": digest}
    found = from_fields(_ADAPTER, fields, what=f"model {name!r}", param="model")
    for field, text in (("digest", digest), ("text_digest", found.text_digest)):
        if not is_digest(text):
            raise BadRequest(f"{field} must be a SHA-256 in hexadecimal", param=field)
    return found


def model_to_json(model: ModelRecord) -> dict[str, Any]:
    """Every field but name and digest, which are in the record's id; those that came later where they have a value.

    So gateways of a version without them read the record of a model that has none.
    """
    value: Mapping[str, Any] = _ADAPTER.dump_python(model, mode="json")
    left_out = {"name", "digest", *(name for name in ("facts", "speculation") if value[name] is None)}
    return {name: value[name] for name in value if name not in left_out}
