"""Plans as JSON and back, and the checks of what a person wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.core.tenancy.names import check_name
from stratos.core.tenancy.plan import Plan

_ADAPTER = TypeAdapter(Plan)
PLANS_ALONE = frozenset({"kv_reserved_ratio"})
"""Fields that bind the other plans."""


def check_plan_name(name: str) -> str:
    """Check the name of a plan; raises ``BadRequest``."""
    return check_name(name, "plan")


def plan_from_json(name: str, value: object) -> Plan:
    """The plan that an object says; fields it lacks have their defaults.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    check_plan_name(name)
    if not isinstance(value, dict) or "name" in value:
        raise BadRequest("a plan is an object of its fields, without its name", param="plan")
    return from_fields(_ADAPTER, {**value, "name": name}, what=f"plan {name!r}", param="plan")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Every field but the name."""
    value: dict[str, Any] = _ADAPTER.dump_python(plan, mode="json")
    return {name: value[name] for name in value if name != "name"}


def overrides_from_json(value: object) -> dict[str, Any]:
    """Single fields of a plan, as values of ``Plan``; raises like ``plan_from_json``."""
    if not isinstance(value, dict):
        raise BadRequest("overrides are an object of a plan's fields", param="overrides")
    plan = plan_from_json("overrides", value)
    if refused := sorted(PLANS_ALONE & value.keys()):
        raise BadRequest(f"{refused[0]} belongs to a plan; a tenant cannot override it", param=refused[0])
    return {name: getattr(plan, name) for name in value}


def overrides_to_json(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The form in which overrides are stored and shown."""
    plan = plan_to_json(Plan(name="overrides", **overrides))
    return {name: plan[name] for name in overrides}
