"""Policies by configuration: what each name does, which pool gets which, and which configurations are refused."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from stratos.core.cache_changes import CacheChanges
from stratos.core.placement import WorkerRole
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, choose
from stratos.routing.policy.policies import InvalidPolicy, Policies
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.routing.policy.settings import PolicyConfig, RoutingPoliciesConfig
from stratos.rpc.settings import InvalidSettings, load_settings
from stratos_router.settings import RouterSettings
from tests.support.worlds.fleet_samples import MODEL, make_request, make_sample_ask, make_view

PREFILL, DECODE = WorkerRole.PREFILL, WorkerRole.DECODE


def policies(default: str = "balanced", **changes: Any) -> Policies:
    return Policies(RoutingPoliciesConfig(default=default, **changes))


def custom(**policy: Any) -> Policies:
    return policies("mine", custom={"mine": PolicyConfig(**policy)})


def order(these: Policies, *views: Any, role: WorkerRole = DECODE, count: int = 9, **request: Any) -> list[str]:
    ranked = these.rank(views, these.context(make_request(**request)), role, count, Random(0)).workers
    return [view.ref.worker_id for view in ranked]


def test_round_robin_takes_workers_in_turn_whatever_their_load() -> None:
    these = policies("round_robin")
    views = [make_view("b", num_running=7), make_view("c"), make_view("a")]
    assert [order(these, *views, count=1) for _ in range(5)] == [["a"], ["b"], ["c"], ["a"], ["b"]]
    assert order(these, views[0], views[2], count=1) == ["a"]  # c is out: the turn goes on after b
    assert order(these, *views, count=2) == ["b", "c"]


def test_round_robin_reaches_all_decode_workers_through_choose() -> None:
    these, views = policies("round_robin"), [make_view(name, num_running=i) for i, name in enumerate("abcd")]
    choices = [choose(FleetViews(views), make_sample_ask(), these, Random(0)) for _ in range(8)]
    assert Counter(c.worker.ref.worker_id for c in choices if isinstance(c, EndpointChoice)) == dict.fromkeys("abcd", 2)


def test_least_loaded_looks_at_load_alone() -> None:
    views = [make_view("a", num_running=2), make_view("b", num_running=1), make_view("c", num_queued_tokens=4096)]
    assert order(policies("least_loaded"), *views) == ["b", "a", "c"]


def test_short_prompts_mind_only_long_queues_and_long_prompts_mind_every_token() -> None:
    these = custom(scorers={"queued_tokens": 1.0}, picker="best")
    views = [make_view("a", num_queued_tokens=1500), make_view("b", num_queued_tokens=9000), make_view("c")]
    firsts = {
        these.rank(views, these.context(make_request()), DECODE, 1, Random(seed)).workers[0].ref.worker_id
        for seed in range(40)
    }
    assert firsts == {"a", "c"}  # alike to a short prompt
    assert order(these, *views, num_prompt_tokens=2048) == ["c", "a", "b"]


def test_measured_latencies_are_compared_and_a_worker_without_one_is_tried() -> None:
    views = [make_view("a", ttft_s=0.4, itl_s=0.01), make_view("b", ttft_s=0.1, itl_s=0.05)]
    assert order(custom(scorers={"ttft": 1.0}), *views) == ["b", "a"]
    assert order(custom(scorers={"itl": 1.0}), *views) == ["a", "b"]
    assert set(order(custom(scorers={"ttft": 1.0}), *views, make_view("c"), count=2)) == {"b", "c"}


@pytest.mark.parametrize("place", ["zone", "region"])
def test_places_are_preferred_by_the_scorer_and_kept_by_the_filter(place: str) -> None:
    views = [make_view("a", **{place: "east"}), make_view("b", **{place: "west"}, num_running=3)]
    assert order(custom(scorers={place: 1.0, "load": 0.1}), *views, **{place: "west"}) == ["b", "a"]
    assert order(custom(filters=(place,)), *views, **{place: "west"}) == ["b"]
    assert order(custom(filters=(place,), scorers={"load": 1.0}), *views, **{place: "north"}) == ["a", "b"]
    assert order(custom(scorers={place: 1.0, "load": 0.1}), *views) == ["a", "b"]


def test_a_zone_without_workers_leaves_those_of_its_region() -> None:
    views = [make_view("far", zone="w1", region="west"), make_view("near", zone="e2", region="east", num_running=3)]
    near = custom(filters=("region", "zone"), scorers={"load": 1.0})
    assert order(near, *views, zone="e1", region="east") == ["near"]


@pytest.mark.parametrize("place", ["zone", "region"])
def test_a_worker_that_names_no_place_counts_as_near(place: str) -> None:
    """In an upgrade the first new worker would else get everything."""
    views = [make_view("old"), make_view("new", **{place: "east"}, num_running=7), make_view("far", **{place: "west"})]
    assert order(custom(filters=(place,), scorers={"load": 1.0}), *views, **{place: "east"}) == ["old", "new"]
    assert order(custom(scorers={place: 1.0, "load": 0.1}), *views, **{place: "east"}) == ["old", "new", "far"]


def test_sources_are_near_the_chosen_decode_worker_and_not_the_gateway() -> None:
    near = custom(filters=("region", "zone"), scorers={"load": 1.0})
    places = {"p-east": ("east", "e1"), "p-west": ("west", "w1"), "p-same": ("west", "w2"), "p-busy": ("west", "w2")}
    views = [make_view(name, PREFILL, region=region, zone=zone) for name, (region, zone) in places.items()]
    views[-1] = make_view("p-busy", PREFILL, region="west", zone="w2", num_queued_tokens=900)
    views.append(make_view("d", region="west", zone="w2"))
    assert sources(near, *views) == ["p-same", "p-busy"]
    assert sources(near, *views, known="p-east") == ["p-same", "p-busy"], "its prompt is computed again"
    assert sources(near, *views, known="p-busy") == ["p-busy", "p-same"]
    assert sources(custom(scorers={"zone": 1.0, "load": 0.1}), *views) == ["p-same", "p-busy"]


def sources(these: Policies, *views: Any, known: str = "") -> list[str]:
    """Prefill workers for a gateway in the east."""
    ask = make_sample_ask(region="east", zone="e1")
    choice = choose(FleetViews(views), ask, these, Random(0), preferred_prefill=known and f"inc-{known}")
    assert isinstance(choice, EndpointChoice)
    return [view.ref.worker_id for view in choice.prefill]


def test_crowded_sources_are_left_for_another_zone_where_the_policy_says_so() -> None:
    """A prefill worker is never too full by itself: it takes prompts whatever waits there."""
    views = [make_view("d", region="east", zone="e1"), make_view("full", PREFILL, zone="e1", num_waiting=500)]
    views.append(make_view("idle", PREFILL, zone="e2"))
    assert sources(custom(filters=("zone",)), *views) == ["full"]
    assert sources(custom(filters=("uncrowded", "zone")), *views) == ["idle"]


def test_a_session_keeps_its_worker_as_long_as_that_is_there() -> None:
    these = policies("session_affinity")
    views = [make_view(name) for name in "abcdefgh"]
    homes = {key: order(these, *views, session_key=key, count=1)[0] for key in range(1, 200)}
    assert set(homes.values()) == set("abcdefgh")
    for key, home in homes.items():
        fewer = [view for view in views if view.ref.worker_id not in (home, "c")]
        moved = order(these, *fewer, session_key=key, count=1)
        others = [view for view in views if view.ref.worker_id != "c"]
        assert home == "c" or order(these, *others, session_key=key, count=1) == [home], "only those of c move"
        assert moved == order(these, *reversed(fewer), session_key=key, count=1)
    assert order(these, *views, block_hashes=(5, 6), count=1) == order(these, *views, block_hashes=(5, 9), count=1)


def test_the_worker_with_the_longest_prefix_is_chosen_unless_it_is_much_busier() -> None:
    index = PrefixIndex(max_blocks=100)
    for name, stored in (("inc-a", (1, 2, 3)), ("inc-b", (1,)), ("inc-c", (2, 3, 4))):
        index.apply(name, CacheChanges(after=0, last=1, stored=stored, is_dump=True))
    these = Policies(RoutingPoliciesConfig(default="prefix"), index)
    views = [make_view(name) for name in "abc"]
    assert order(these, *views, block_hashes=(1, 2, 3, 4), count=1) == ["a"]
    busy = [make_view("a", num_running=8), *views[1:]]
    assert order(these, *busy, block_hashes=(1, 2, 3, 4), count=1) == ["b"]


def test_the_default_prefers_the_adapter_and_yields_to_load() -> None:
    these = Policies(RoutingPoliciesConfig())
    assert these.name_of(DECODE, MODEL) == "prefix"
    has = make_view("b", resident_adapters=frozenset({"lora"}), num_running=1)
    assert order(these, make_view("a"), has, adapter_digest="lora", count=1) == ["b"]
    busy = make_view("b", resident_adapters=frozenset({"lora"}), num_running=7)
    assert order(these, make_view("a"), busy, adapter_digest="lora", count=1) == ["a"]
    assert order(these, make_view("a", num_running=3), make_view("b", num_running=1), count=1) == ["b"]


def test_first_token_counts_what_waits_and_what_is_not_cached() -> None:
    index = PrefixIndex(max_blocks=100)
    index.apply("inc-a", CacheChanges(after=0, last=1, stored=tuple(range(1, 61)), is_dump=True))
    these = Policies(
        RoutingPoliciesConfig(default="x", custom={"x": PolicyConfig(scorers={"first_token": 1.0})}), index
    )
    request = {"block_hashes": tuple(range(1, 61)), "num_prompt_tokens": 1000}
    assert order(these, make_view("a", num_queued_tokens=900), make_view("b"), **request) == ["a", "b"]
    assert order(these, make_view("a", num_queued_tokens=1000), make_view("b"), **request) == ["b", "a"]


@pytest.mark.parametrize("scorer", ["first_token", "prefix"])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_block_that_has_to_be_loaded_counts_for_what_it_saves(scorer: str, tier: str) -> None:
    index = PrefixIndex(max_blocks=100)
    names = tuple(range(1, 61))
    index.apply("inc-a", CacheChanges(after=0, last=1, is_dump=True, **{f"on_{tier}": names}))  # type: ignore[arg-type]
    index.apply("inc-b", CacheChanges(after=0, last=1, stored=names[:30], is_dump=True))
    these = Policies(RoutingPoliciesConfig(default="x", custom={"x": PolicyConfig(scorers={scorer: 1.0})}), index)
    for ratio, first in ((0.2, "a"), (0.45, "a"), (0.55, "b"), (1.0, "b")):
        views = [make_view("a", **{f"{tier}_load_ratio": ratio}), make_view("b")]
        assert order(these, *views, block_hashes=names, num_prompt_tokens=1000)[0] == first


def test_only_roles_whose_policy_needs_it_are_followed() -> None:
    assert not policies("least_loaded").uses_index(DECODE)
    assert policies("prefix").uses_index(PREFILL)
    mixed = policies("prefix", pools={"prefill": "least_loaded"})
    assert mixed.uses_index(DECODE)
    assert not mixed.uses_index(PREFILL)
    assert policies("least_loaded", pools={f"*/{MODEL}": "prefix"}).uses_index(PREFILL)


def test_two_choices_takes_the_better_one_of_two() -> None:
    these = custom(scorers={"load": 1.0}, picker="two_choices")
    views = [make_view(name, num_running=i) for i, name in enumerate("abc")]
    firsts = Counter(
        these.rank(views, these.context(make_request()), DECODE, 1, Random(s)).workers[0].ref.worker_id
        for s in range(300)
    )
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
        Policies(RoutingPoliciesConfig(**changes))
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
