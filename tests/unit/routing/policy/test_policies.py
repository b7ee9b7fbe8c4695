"""Policies by configuration: what each name does, which pool gets which, and which configurations are refused."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from stratos.core.placement import WorkerRole
from stratos.routing.picker import Choice, choose
from stratos.routing.policy.policies import InvalidPolicy, Policies
from stratos.routing.policy.settings import PoliciesConfig, PolicyConfig
from stratos.rpc.settings import InvalidSettings, load_settings
from stratos_router.settings import RouterSettings
from tests.support.fleet_samples import MODEL, make_request, make_sample_ask, make_view

PREFILL, DECODE = WorkerRole.PREFILL, WorkerRole.DECODE


def policies(default: str = "balanced", **changes: Any) -> Policies:
    return Policies(PoliciesConfig(default=default, **changes))


def custom(**policy: Any) -> Policies:
    return policies("mine", custom={"mine": PolicyConfig(**policy)})


def order(these: Policies, *views: Any, role: WorkerRole = DECODE, count: int = 9, **request: Any) -> list[str]:
    ranked = these.rank(views, make_request(**request), role, count, Random(0))
    return [view.ref.worker_id for view in ranked]


def test_round_robin_takes_workers_in_turn_whatever_their_load() -> None:
    these = policies("round_robin")
    views = [make_view("b", num_running=7), make_view("c"), make_view("a")]
    assert [order(these, *views, count=1) for _ in range(5)] == [["a"], ["b"], ["c"], ["a"], ["b"]]
    assert order(these, views[0], views[2], count=1) == ["a"]  # c is out: the turn goes on after b
    assert order(these, *views, count=2) == ["b", "c"]


def test_round_robin_reaches_all_decode_workers_through_choose() -> None:
    these, views = policies("round_robin"), [make_view(name, num_running=i) for i, name in enumerate("abcd")]
    choices = [choose(views, make_sample_ask(), these, Random(0)) for _ in range(8)]
    assert Counter(c.worker.ref.worker_id for c in choices if isinstance(c, Choice)) == dict.fromkeys("abcd", 2)


def test_least_loaded_looks_at_load_alone() -> None:
    views = [make_view("a", num_running=2), make_view("b", num_running=1), make_view("c", num_queued_tokens=4096)]
    assert order(policies("least_loaded"), *views) == ["b", "a", "c"]


def test_short_prompts_mind_only_long_queues_and_long_prompts_mind_every_token() -> None:
    these = custom(scorers={"queued_tokens": 1.0}, picker="best")
    views = [make_view("a", num_queued_tokens=1500), make_view("b", num_queued_tokens=9000), make_view("c")]
    firsts = {these.rank(views, make_request(), DECODE, 1, Random(seed))[0].ref.worker_id for seed in range(40)}
    assert firsts == {"a", "c"}  # alike to a short prompt
    assert order(these, *views, num_prompt_tokens=2048) == ["c", "a", "b"]


def test_two_choices_takes_the_better_one_of_two() -> None:
    these = custom(scorers={"load": 1.0}, picker="two_choices")
    views = [make_view(name, num_running=i) for i, name in enumerate("abc")]
    firsts = Counter(these.rank(views, make_request(), DECODE, 1, Random(s))[0].ref.worker_id for s in range(300))
    assert firsts["a"] > firsts["b"] > 0
    assert firsts["c"] == 0


def test_filters_narrow_but_never_to_nothing() -> None:
    these = custom(filters=("adapter", "uncrowded"))
    has = make_view("a", resident_adapters=frozenset({"lora"}), num_running=3)
    assert order(these, has, make_view("b"), adapter_digest="lora") == ["a"]
    assert set(order(these, has, make_view("b"))) == {"a", "b"}
    assert set(order(these, has, make_view("b"), adapter_digest="other")) == {"a", "b"}
    assert order(these, make_view("a", num_running=7), make_view("b", num_running=1)) == ["b"]


def test_the_most_specific_pool_decides() -> None:
    these = policies(
        pools={"prefill": "least_loaded", "*/other": "round_robin", f"decode/{MODEL}": "round_robin"},
    )
    assert these.name_of(DECODE, MODEL) == "round_robin"
    assert these.name_of(PREFILL, MODEL) == "least_loaded"
    assert these.name_of(PREFILL, "other") == "round_robin"
    assert these.name_of(DECODE, "third") == "balanced"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"default": "round_robbin"}, "default policy 'round_robbin' is not known (did you mean 'round_robin'?)"),
        ({"pools": {"decode": "mine"}}, "pool 'decode': policy 'mine' is not known"),
        ({"pools": {"decoder": "balanced"}}, "pool 'decoder' must begin with"),
        ({"pools": {"decode/": "balanced"}}, "the model digest is missing"),
        ({"custom": {"balanced": PolicyConfig()}}, "this name is taken"),
        ({"custom": {"x": PolicyConfig(scorers={"lod": 1.0})}}, "scorer 'lod' is not known (did you mean 'load'?)"),
        ({"custom": {"x": PolicyConfig(scorers={"load": -1.0})}}, "weights must not be negative"),
        ({"custom": {"x": PolicyConfig(filters=("all",))}}, "filter 'all' is not known"),
        ({"custom": {"x": PolicyConfig(picker="worst")}}, "picker 'worst' is not known"),
    ],
)
def test_unknown_names_are_refused_with_what_is_known(changes, text) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Policies(PoliciesConfig(**changes))
    assert text in str(caught.value)


def load(monkeypatch: pytest.MonkeyPatch, **variables: str) -> RouterSettings:
    monkeypatch.setenv("STRATOS_ROUTER_DISCOVERY", "static://decode@localhost:1")
    for name, value in variables.items():
        monkeypatch.setenv(f"STRATOS_ROUTER_POLICIES__{name}", value)
    return load_settings(RouterSettings)


def test_the_environment_configures_policies(monkeypatch) -> None:
    settings = load(
        monkeypatch,
        DEFAULT="mine",
        POOLS='{"prefill": "round_robin"}',
        CUSTOM='{"mine": {"filters": ["uncrowded"], "scorers": {"load": 2, "adapter": 0.5}, "picker": "two_choices"}}',
    )
    assert settings.policies.custom["mine"].scorers == {"load": 2.0, "adapter": 0.5}
    assert Policies(settings.policies).name_of(PREFILL, MODEL) == "round_robin"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"DEFAULT": "fastest"}, "default policy 'fastest' is not known"),
        ({"CUSTOM": '{"mine": {"scorer": {"load": 1}}}'}, "Unexpected keyword argument"),
        ({"CUSTOM": '{"mine": {"scorers": {"load": "much"}}}'}, "valid number"),
        ({"POOLS": "decode=round_robin"}, "must be JSON"),
    ],
)
def test_a_router_does_not_start_with_policies_it_does_not_know(monkeypatch, variables, text) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(monkeypatch, **variables)
    assert text in str(caught.value)
    assert "STRATOS_ROUTER_POLICIES" in str(caught.value)
