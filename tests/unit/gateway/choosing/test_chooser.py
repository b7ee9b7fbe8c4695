"""Choices of models: which rule fits, who may be chosen, in which order; what of a body rules look at."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.errors import DependencyDown, ModelNotFound, PermissionDenied
from stratos.core.tenancy.plan import Plan
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos.store.counters.choice_affinity import ChoiceAffinity
from stratos.store.models.choice_forms import choice_from_json
from stratos.store.models.choice_rules import ChoiceRules, Need
from stratos_gateway.choices.asked import asked_of
from stratos_gateway.choices.source import ChoiceSource
from stratos_gateway.choosing.chooser import Choice, ModelChooser
from stratos_gateway.models.catalogue import ModelTarget

SIZES = {"small": "1b", "middle": "8b", "big": "70b"}
PRICES = {size: Price(prompt=price, output=2 * price) for size, price in (("1b", 1), ("8b", 10), ("70b", 100))}
TENANT = Tenant(name="acme", id="tn_1", plan=Plan(name="gold", prices=PRICES))
TABLE = choice_from_json(
    "auto",
    {
        "default": "middle",
        "rules": [
            {"name": "agent", "needs": ["tools", "schema"], "models": ["big"]},
            {"name": "code", "keywords": ["python"], "task": "code", "at_least": 0.5},
            {"name": "free", "plans": ["free"], "models": ["small"]},
            {"name": "short", "max_chars": 10, "models": ["big", "middle", "small"]},
        ],
        "scores": {"code": {"big": 0.9, "small": 0.2, "middle": 0.5}},
    },
)


@dataclass
class Fleet(ChoiceSource):
    """Rules, models, and sessions."""

    rules: ChoiceRules | None = TABLE
    refused: dict[str, Exception] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Models that have no chat template."""
    kept: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity_error: Exception | None = None

    def find(self, tenant: str) -> ChoiceRules | None:
        return self.rules

    async def resolve(self, tenant: Tenant, name: str) -> ModelTarget:
        if name in self.refused:
            raise self.refused[name]
        base = SimpleNamespace(size=SIZES[name], can_generate=True, can_chat=name not in self.silent)
        return cast("ModelTarget", SimpleNamespace(served=SimpleNamespace(base=base)))

    async def keep(self, tenant_id: str, session: str, names: list[str]) -> str:
        if self.affinity_error is not None:
            raise self.affinity_error
        known = self.kept.get((tenant_id, session), "")
        return self.kept.setdefault((tenant_id, session), names[0]) if known not in names else known

    async def choose(self, tenant: Tenant = TENANT, **body: Any) -> Choice:
        chooser = ModelChooser(self, self.resolve, cast("ChoiceAffinity", self))
        return await chooser.choose(tenant, {"model": "auto", **body})


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), texts, strict=False)]


@pytest.mark.parametrize(
    ("body", "rule", "names"),
    [
        ({"prompt": "hi"}, "short", ["small", "middle", "big"]),
        ({"prompt": "a longer text of nothing"}, "default", ["middle"]),
        ({"prompt": "write Python, please"}, "code", ["middle", "big"]),
        ({"prompt": "hi", "tools": [{}], "response_format": {"type": "json_schema"}}, "agent", ["big"]),
        ({"prompt": "hi", "tools": [{}]}, "short", ["small", "middle", "big"]),
        ({"messages": said("python", "ok", "thanks a lot for it")}, "default", ["middle"]),
        ({"messages": said("thanks", "ok", "python")}, "code", ["middle", "big"]),
        ({"prompt": [1, 2]}, "short", ["small", "middle", "big"]),
        ({"prompt": [1, 2, 3]}, "default", ["middle"]),
        ({"messages": 5, "prompt": {"a": 1}}, "short", ["small", "middle", "big"]),
    ],
)
async def test_the_first_rule_that_fits_decides_and_the_cheapest_model_is_first(
    body: dict[str, Any], rule: str, names: list[str]
) -> None:
    choice = await Fleet().choose(**body)
    assert (choice.rule, list(choice.names)) == (rule, names)


async def test_a_plan_has_rules_of_its_own() -> None:
    free = Tenant(name="f", plan=Plan(name="free"))
    assert (await Fleet().choose(free, prompt="a longer text of nothing")).rule == "free"


async def test_equal_prices_leave_the_order_of_the_table() -> None:
    free = Tenant(name="f", plan=Plan(name="none"))
    assert list((await Fleet().choose(free, prompt="hi")).names) == ["big", "middle", "small"]


@pytest.mark.parametrize("error", [ModelNotFound("no"), PermissionDenied("no"), DependencyDown("no")])
async def test_what_the_key_may_not_use_is_never_chosen(error: Exception) -> None:
    fleet = Fleet(refused={"small": error})
    assert list((await fleet.choose(prompt="hi")).names) == ["middle", "big"]
    fleet.refused["big"] = error
    tools = {"tools": [{}], "response_format": {"type": "json_object"}}
    assert (await fleet.choose(prompt="hi", **tools)) == Choice(["middle"], "default")
    fleet.refused["middle"] = error
    with pytest.raises(ModelNotFound, match="auto"):
        await fleet.choose(prompt="hi")


async def test_a_model_without_a_template_answers_no_chat() -> None:
    fleet = Fleet(silent={"small"})
    assert list((await fleet.choose(messages=said("hi"))).names) == ["middle", "big"]
    assert list((await fleet.choose(prompt="hi")).names) == ["small", "middle", "big"]


async def test_the_switch_sends_everything_to_the_default() -> None:
    off = choice_from_json("auto", {"default": "big", "rules": [{"name": "all", "models": ["small"]}], "is_on": False})
    assert await Fleet(rules=off).choose(prompt="hi") == Choice(["big"], "off")


async def test_a_session_keeps_its_model_while_that_may_answer() -> None:
    fleet, session = Fleet(refused={"small": DependencyDown("not loaded")}), {"prompt_cache_key": "s"}
    assert await fleet.choose(prompt="hi", **session) == Choice(["middle", "big"], "short")
    fleet.refused.clear()
    assert await fleet.choose(prompt="hi", **session) == Choice(["middle", "small", "big"], "short", is_kept=True)
    assert (await fleet.choose(prompt="hi")).names[0] == "small"
    fleet.affinity_error = DependencyDown("Redis")
    assert await fleet.choose(prompt="hi", **session) == Choice(["small", "middle", "big"], "short")


@pytest.mark.parametrize(
    ("body", "chars", "needs"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "four"}]}], "system": "abc"}, 7, set()),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "four"}]}], "instructions": "a"},
            5,
            set(),
        ),
        ({"input": [{"type": "function_call_output", "output": "four"}], "tools": []}, 4, set()),
        ({"prompt": ["ab", "c"]}, 3, set()),
        ({"prompt": [[1, 2], [3]]}, 12, set()),
        ({"prompt": [True, None, {}]}, 0, set()),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, 1, {Need.SCHEMA}),
        ({"messages": [], "output_config": {"format": {"type": "json_schema"}}}, 0, {Need.SCHEMA}),
        ({"prompt": "x", "structured_outputs": {"regex": "a"}}, 1, {Need.SCHEMA}),
    ],
)
def test_rules_see_length_and_needs_of_every_dialect(body: dict[str, Any], chars: int, needs: set[Need]) -> None:
    asked = asked_of(body)
    assert (asked.num_chars, asked.needs) == (chars, needs)


def test_a_deep_body_is_looked_at_to_a_bound() -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    assert asked_of({"messages": deep, "prompt": deep}).num_chars == 0


def test_a_million_token_ids_are_counted_and_not_looked_through() -> None:
    ids = [7] * 1_000_000
    begin = time.thread_time()
    assert asked_of({"prompt": ids}).num_chars == asked_of({"prompt": [ids]}).num_chars == 4_000_000
    assert time.thread_time() - begin < 0.01
