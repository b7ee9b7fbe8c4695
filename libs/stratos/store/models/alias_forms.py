"""Aliases as JSON and back, and the forms of names that requests may have.

base                    a model, or an alias
base@stable             an alias of revisions of ``base``
base@3f9a12cd           one revision of ``base``, by the first digits of its digest
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.store.models.alias_record import WHOLE, AliasRecord, AliasTarget
from stratos.store.models.forms import check_model_name

MAX_TARGETS = 8
MIN_DIGITS = 8
"""Of a digest that is cut off."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DIGITS = re.compile(r"[0-9a-f]{8,64}\Z")
_ADAPTER = TypeAdapter(with_config(ConfigDict(extra="forbid"))(AliasRecord))


def split_name(name: str) -> tuple[str, str]:
    """Model and tag of ``base@stable``; the tag of a plain name is ""."""
    model, _, tag = name.partition("@")
    return model, tag


def pinned(name: str) -> tuple[str, str] | None:
    """Model and first digits of ``base@3f9a12cd``; ``None`` for what pins no revision."""
    if "@" not in name:
        return None
    model, tag = split_name(name)
    return (model, tag) if model and _DIGITS.match(tag) else None


def check_alias_name(name: str) -> str:
    """A name that an alias can have.

    Raises:
        BadRequest: it is none, or reads as the digest of a revision.
    """
    model, at, tag = name.partition("@")
    check_model_name(model)
    if at and not _TAG.match(tag):
        raise BadRequest("behind the @ of an alias stand at most 64 characters of a-z A-Z 0-9 . _ -", param="name")
    if pinned(name) is not None:
        raise BadRequest(f"{name!r} reads as a revision by its digest; choose a tag with other letters", param="name")
    return name


def alias_from_json(name: str, value: object) -> AliasRecord:
    """The alias that an object says; fields it lacks have their defaults.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    found = alias_draft(name, value)
    if not all(re.fullmatch("[0-9a-f]{64}|", target.digest) for target in found.targets + found.before):
        raise BadRequest("the digest of a target must be a SHA-256 in hexadecimal", param="targets")
    return found


def alias_draft(name: str, value: object) -> AliasRecord:
    """Like ``alias_from_json``, where a digest may be cut off."""
    check_alias_name(name)
    if not isinstance(value, dict) or "name" in value:
        raise BadRequest("an alias is an object of its fields", param="alias")
    found = from_fields(_ADAPTER, {**value, "name": name}, what=f"alias {name!r}", param="alias")
    _check_targets(found, found.targets, "targets")
    if found.before:
        _check_targets(found, found.before, "before")
    return found


def alias_to_json(alias: AliasRecord) -> dict[str, Any]:
    """Every field but the name, which is the record's id."""
    value: Mapping[str, Any] = _ADAPTER.dump_python(alias, mode="json")
    return {field: value[field] for field in value if field != "name"}


def _check_targets(alias: AliasRecord, targets: tuple[AliasTarget, ...], param: str) -> None:
    name, (model, tag) = alias.name, split_name(alias.name)
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise BadRequest(f"an alias has 1 to {MAX_TARGETS} targets", param=param)
    if (total := sum(target.weight for target in targets)) != WHOLE:
        raise BadRequest(f"the weights of an alias add up to {WHOLE}, not to {total}", param=param)
    if len({(target.model, target.digest) for target in targets}) < len(targets):
        raise BadRequest("two targets of an alias are the same", param=param)
    for target in targets:
        if not re.fullmatch("[0-9a-f]{0,64}", target.digest):
            raise BadRequest("the digest of a target must be digits of a SHA-256 in hexadecimal", param=param)
        if target.model == name and not target.digest:
            raise BadRequest(f"the alias {name!r} names itself; name revisions by their digests", param=param)
        if tag and split_name(target.model)[0] != model:
            raise BadRequest(f"{name!r} stands for revisions of {model!r} alone, not of {target.model!r}", param=param)
