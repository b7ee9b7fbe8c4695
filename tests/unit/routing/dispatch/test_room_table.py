"""Room by table agrees with the full search, for all fleets and requests, also when the fleet changes under it."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.admission import Ask
from stratos.routing.dispatch.full_models import FullModels
from stratos.routing.dispatch.room_table import RoomTable
from stratos.routing.filters import DECODE_FILTERS, Rejection, is_candidate
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, Refusal, choose, eligible
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.ticket import PlacementVerdict
from stratos.routing.worker_view import BookedLoad
from tests.support.examples import examples
from tests.support.worlds.fleet_samples import ledger, make_sample_ask, make_view

POLICIES = Policies(RoutingPoliciesConfig())

Drawn = tuple[int, dict[str, Any]]

others = st.fixed_dictionaries(
    {
        "num_running": st.integers(3, 11),
        "num_promised_blocks": st.integers(0, 10),
        "p90_output_tokens": st.sampled_from([16, 60, 61, 200]),
        "block_size": st.sampled_from([16, 16, 16, 8]),
        "num_free_adapter_slots": st.integers(0, 1),
        "resident_adapters": st.sampled_from([frozenset(), frozenset({"a"})]),
        "features": st.sampled_from([frozenset(), frozenset({"x"})]),
        "out_reason": st.sampled_from(["", "", "", "lost"]),
        "is_spot": st.booleans(),
        "num_routers": st.integers(1, 2),
        "fresh": st.sampled_from([BookedLoad(), BookedLoad(num_requests=1, num_seqs=1, num_blocks=4)]),
    }
)
workers = st.tuples(st.integers(0, 60), others)
asks = st.builds(
    make_sample_ask,
    num_prompt_tokens=st.integers(1, 900),
    max_output_tokens_total=st.integers(1, 200),
    num_choices=st.integers(1, 3),
    num_emitted_tokens=st.integers(0, 1),
    refusals=st.sampled_from([{}, {"inc-w0": 0}]),
    excluded_incarnations=st.sampled_from([frozenset(), frozenset({"inc-w0"})]),
    required_features=st.sampled_from([frozenset(), frozenset({"x"})]),
    priority_class=st.sampled_from([0, BATCH_CLASS]),
)
closed_sets = st.sampled_from([frozenset(), frozenset({"inc-w1"}), frozenset({"inc-w0", "inc-w2"})])


def fleet_of(drawn: list[Drawn]) -> FleetViews:
    return FleetViews(
        make_view(f"w{index}", **others, blocks=ledger(60, allocated=allocated))
        for index, (allocated, others) in enumerate(drawn)
    )


def closing(ask: Ask, closed: frozenset[str]) -> Ask:
    return dataclasses.replace(ask, closed=closed)


@settings(max_examples=examples(300))
@given(
    fleets=st.lists(st.lists(workers, max_size=4), max_size=3), requests=st.lists(asks, max_size=6), closed=closed_sets
)
def test_what_the_table_refuses_is_blocked_and_what_it_leaves_is_as_good_as_the_whole_pool(
    fleets: list[list[Drawn]], requests: list[Ask], closed: frozenset[str]
) -> None:
    table = RoomTable()
    for version, fleet in enumerate(fleets):
        views = fleet_of(fleet)
        table.look(views, version)
        for ask in (closing(ask, closed) for ask in requests):
            found = choose(views, ask, POLICIES, Random(0))
            if isinstance(found, Refusal) and found.rejections[Rejection.EXCLUDED] and not found.is_blocked:
                request = dataclasses.replace(ask.request, excluded_incarnations=frozenset())
                found = choose(views, dataclasses.replace(ask, request=request), POLICIES, Random(0))
            candidates = table.candidates(ask)
            if candidates is None:
                continue
            if not candidates:
                assert isinstance(found, Refusal)
                assert found.is_blocked
            left = choose(views, ask, POLICIES, Random(0), pool=candidates)
            if isinstance(choose(views, ask, POLICIES, Random(0)), EndpointChoice):
                assert isinstance(left, EndpointChoice)


@settings(max_examples=examples(300))
@given(fleet=st.lists(workers, max_size=4), requests=st.lists(asks, max_size=6), closed=closed_sets)
def test_prompts_within_the_bounds_find_no_room(
    fleet: list[Drawn], requests: list[Ask], closed: frozenset[str]
) -> None:
    table, views = RoomTable(), fleet_of(fleet)
    table.look(views, 1)
    for ask in requests:
        more_than, at_most = table.blocked(table.kind_of(ask), closed)
        if more_than < ask.request.num_prompt_tokens <= at_most:
            found = choose(views, closing(ask, closed), POLICIES, Random(0))
            assert isinstance(found, Refusal)
            assert found.is_blocked or found.rejections[Rejection.EXCLUDED]


@settings(max_examples=examples(200))
@given(
    fleet=st.lists(workers, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 3), st.none() | workers), max_size=5),
    requests=st.lists(asks, max_size=4),
    closed=closed_sets,
)
def test_a_table_that_follows_the_fleet_agrees_with_a_new_one(
    fleet: list[Drawn], changes: list[tuple[int, Drawn | None]], requests: list[Ask], closed: frozenset[str]
) -> None:
    table, views = RoomTable(), fleet_of(fleet)
    for version, (index, worker) in enumerate(changes):
        if worker is None:
            views.remove(f"inc-w{index}")
        else:
            views.put(make_view(f"w{index}", **worker[1], blocks=ledger(60, allocated=worker[0])))
        new = RoomTable()
        table.look(views, version)
        new.look(views, version)
        for ask in (closing(ask, closed) for ask in requests):
            kind = table.kind_of(ask)
            assert table.blocked(kind, closed) == new.blocked(kind, closed)
            mine, fresh = table.candidates(ask), new.candidates(ask)
            assert (mine is None) is (fresh is None)
            assert {id(view) for view in mine or ()} == {id(view) for view in fresh or ()}


def test_what_no_worker_could_ever_take_is_not_blocked_though_all_with_batch_slots_are_closed() -> None:
    table, ask = RoomTable(), make_sample_ask(num_prompt_tokens=690, max_output_tokens_total=97, num_choices=3)
    view = make_view("w0", num_running=10, p90_output_tokens=60, blocks=ledger(60))
    views = FleetViews([view])
    table.look(views, 1)
    assert isinstance(choose(views, ask, POLICIES, Random(0)), Refusal)
    assert ask.never_fits(view)
    _, at_most = table.blocked(table.kind_of(ask), frozenset({"inc-w0"}))
    assert at_most < 690


def test_a_pool_without_batch_slots_is_left_to_the_search_that_calls_it_full() -> None:
    table, full, ask = RoomTable(), FullModels(), make_sample_ask()
    views = FleetViews([make_view(num_running=10)])
    table.look(views, 1)
    assert table.candidates(ask) is None
    refusal = choose(views, ask, POLICIES, Random(0))
    assert isinstance(refusal, Refusal)
    full.learn(ask, refusal, 1)
    assert full.verdict(ask, 1) is PlacementVerdict.FULL


def test_a_request_of_its_length_is_looked_up_in_one_step() -> None:
    table = RoomTable()
    views = FleetViews([make_view(f"w{i}", blocks=ledger(1000, allocated=870 + i)) for i in range(3)])
    table.look(views, 1)
    ask = make_sample_ask(num_prompt_tokens=64, max_output_tokens_total=32)
    assert table.blocked(table.kind_of(ask), frozenset()) == (28 * 16, 884 * 16)
    assert table.blocked(table.kind_of(ask), frozenset({"inc-w0"})) == (27 * 16, 884 * 16)
    assert [view.ref.worker_id for view in table.candidates(make_sample_ask(num_prompt_tokens=28 * 16)) or ()] == ["w0"]
    assert table.candidates(make_sample_ask(num_prompt_tokens=28 * 16 + 1)) == []


@settings(max_examples=examples(300))
@given(fleet=st.lists(workers, min_size=1, max_size=4), requests=st.lists(asks, max_size=6), closed=closed_sets)
def test_workers_that_are_known_to_be_able_are_those_that_every_filter_passes(
    fleet: list[Drawn], requests: list[Ask], closed: frozenset[str]
) -> None:
    table, views = RoomTable(), fleet_of(fleet)
    table.look(views, 1)
    for ask in (closing(ask, closed) for ask in requests):
        able = table.able(ask)
        if able is not None:
            assert able == eligible(list(views), ask, DECODE_FILTERS, [])[0]


def test_the_workers_of_a_plain_request_are_known_where_all_with_a_slot_have_room() -> None:
    table = RoomTable()
    busy = [make_view(f"w{index}", blocks=ledger(1000, allocated=500 + index)) for index in range(3)]
    views = FleetViews([*busy, make_view("full", num_running=10), make_view("gone", out_reason="lost")])
    table.look(views, 1)
    assert table.able(make_sample_ask()) == busy
    assert table.able(make_sample_ask(num_prompt_tokens=16 * 399)) is None
    assert table.able(closing(make_sample_ask(), frozenset({"inc-w0"}))) is None


@settings(max_examples=examples(300))
@given(fleet=st.lists(workers, max_size=4), requests=st.lists(asks, max_size=6), clear=closed_sets, kept=closed_sets)
def test_prompts_within_the_bounds_of_what_leaves_workers_clear_find_no_room(
    fleet: list[Drawn], requests: list[Ask], clear: frozenset[str], kept: frozenset[str]
) -> None:
    table, views = RoomTable(), fleet_of(fleet)
    table.look(views, 1)
    for ask in requests:
        if ask.request.excluded_incarnations:
            continue
        more_than, at_most = table.blocked(table.kind_of(ask), kept, clear)
        if more_than < ask.request.num_prompt_tokens <= at_most:
            others = [view for view in views if view.ref.incarnation not in clear]
            has_other = any(is_candidate(view, ask) for view in others)
            found = choose(views, closing(ask, kept | clear if has_other else kept), POLICIES, Random(0))
            assert isinstance(found, Refusal)
            assert found.is_blocked
