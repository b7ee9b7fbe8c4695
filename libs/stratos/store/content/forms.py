"""Content policies and prompt templates as JSON and back.

What their rules and texts mean is checked where they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.store.keys import check_tenant

_POLICY = TypeAdapter(ContentPolicy)
_TEMPLATE = TypeAdapter(PromptTemplate)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_MAX_VERSION = 10**9
T = TypeVar("T")


def check_content_name(name: str, param: str) -> str:
    """Check the name of a policy, a rule or a template.

    Raises:
        BadRequest: empty, longer than 64 characters, or other characters than a-z 0-9 . _ -
    """
    if not _NAME.match(name):
        text = "a name has 1 to 64 characters of a-z 0-9 . _ - and starts with a letter or digit"
        raise BadRequest(text, param=param)
    return name


def check_template_id(template_id: str) -> str:
    """Check ``<tenant>/<name>``, or the name of a template that every tenant may use; raises ``BadRequest``."""
    owner, slash, name = template_id.rpartition("/")
    if slash:
        check_tenant(owner)
    check_content_name(name, "templates")
    return template_id


def policy_from_json(name: str, value: object) -> ContentPolicy:
    """The policy that an object says; fields it lacks have their defaults.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    check_content_name(name, "policies")
    policy = _read(_POLICY, f"policies.{name}", value)
    for rule in (*policy.words, *policy.patterns):
        check_content_name(rule, f"policies.{name}")
    return policy


def policy_to_json(policy: ContentPolicy) -> dict[str, Any]:
    """Every field."""
    value: dict[str, Any] = _POLICY.dump_python(policy, mode="json")
    return value


def template_from_json(template_id: str, value: object) -> PromptTemplate:
    """The template that an object says; raises like ``policy_from_json``."""
    check_template_id(template_id)
    template = _read(_TEMPLATE, f"templates.{template_id}", value)
    for number, version in template.versions.items():
        if not 1 <= number <= _MAX_VERSION:
            raise BadRequest(f"template {template_id!r}: versions are counted from 1", param="versions")
        if (version.text is None) == (not version.messages):
            text = f"template {template_id!r}: version {number} has either a text or messages"
            raise BadRequest(text, param="versions")
    return template


def template_to_json(template: PromptTemplate) -> dict[str, Any]:
    """Every version, by its number as text."""
    value: dict[str, Any] = json.loads(_TEMPLATE.dump_json(template))
    return value


def _read(adapter: TypeAdapter[T], what: str, value: object) -> T:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{what} must be an object", param=what[:64])
    return from_fields(adapter, value, what=what[:128], param=what[:64], most_chars=64)
