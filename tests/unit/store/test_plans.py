"""Plans as JSON: every field survives, and what a person got wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import BUILT_IN_PLANS, CachePolicy, Plan
from stratos.core.tenancy.prices import Budget, Price
from stratos.store.plans import overrides_from_json, overrides_to_json, plan_from_json, plan_to_json

FULL = Plan(
    name="gold", priority_class=0, weight=7, ttft_ms=1, itl_ms=2, requests_per_min=3, tokens_per_min=4, burst_s=5,
    max_sequences=6, max_tokens=7, max_n=8, max_prompt_tokens=9, models=("a", "b-*"), cache_policy=CachePolicy.OFF,
    resident_only=True, prices={"8b": Price(prompt=1, cached=2, output=3)},
    budget=Budget(soft=1, hard=2, alert_percents=(50,)), max_batch_ratio=0.5, kv_headroom_ratio=0.25,
    pools=("fast",), kv_reserved_ratio=0.5,
)  # fmt: skip


@pytest.mark.parametrize("plan", [FULL, *BUILT_IN_PLANS.values()], ids=lambda plan: plan.name)
def test_every_field_survives(plan: Plan) -> None:
    assert plan_from_json(plan.name, plan_to_json(plan)) == plan


def test_overrides_hold_what_was_said_and_no_more() -> None:
    value = {"weight": 3, "models": ["x"], "cache_policy": "key", "requests_per_min": None}
    overrides = overrides_from_json(value)
    assert overrides == {"weight": 3, "models": ("x",), "cache_policy": CachePolicy.KEY, "requests_per_min": None}
    assert overrides_to_json(overrides) == value


def test_a_reserve_belongs_to_a_plan() -> None:
    assert overrides_from_json({"pools": ["fast"]}) == {"pools": ("fast",)}
    with pytest.raises(BadRequest) as caught:
        overrides_from_json({"kv_reserved_ratio": 0.5})
    assert caught.value.param == "kv_reserved_ratio"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"wieght": 1}, "wieght"),
        ({"weight": "3"}, "weight"),
        ({"weight": 1.5}, "weight"),
        ({"weight": True}, "weight"),
        ({"weight": 0}, "weight"),
        ({"priority_class": 4}, "priority_class"),
        ({"models": "abc"}, "models"),
        ({"models": [""]}, "models.0"),
        ({"cache_policy": "none"}, "cache_policy"),
        ({"prices": {"8b": {"prompt": 0.1}}}, "prices.8b.prompt"),
        ({"budget": {"hard": -1}}, "budget.hard"),
        ({"max_batch_ratio": 0}, "max_batch_ratio"),
        ({"kv_headroom_ratio": float("nan")}, "kv_headroom_ratio"),
        ({"kv_reserved_ratio": 1}, "kv_reserved_ratio"),
        ({"pools": [""]}, "pools.0"),
        ({"max_n": 17}, "max_n"),
        ({"name": "other"}, "plan"),
        ([], "plan"),
        ({"weight": object()}, "plan"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(value: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plan_from_json("gold", value)
    assert caught.value.param == param
    assert "object at" not in caught.value.message


@pytest.mark.parametrize("name", ["", "Gold", "a b", "-a", "a" * 65, "a\n", "../x"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(BadRequest, match="name"):
        plan_from_json(name, {})
