"""The shortcut for full models agrees with the full search, for all fleets and requests."""

from __future__ import annotations

import dataclasses
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.core.placement import WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.dispatch.full_models import FullModels
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.ticket import PlacementVerdict
from tests.support.examples import examples
from tests.support.worlds.fleet_samples import ledger, make_sample_ask, make_view

POLICIES = Policies(RoutingPoliciesConfig())

workers = st.tuples(
    st.integers(5, 12),
    st.integers(0, 60),
    st.sampled_from(["", "lost"]),
    st.sampled_from(list(WorkerRole)),
    st.booleans(),
)
asks = st.builds(
    make_sample_ask,
    num_prompt_tokens=st.integers(1, 900),
    max_output_tokens_total=st.integers(1, 200),
    num_choices=st.integers(1, 3),
    num_emitted_tokens=st.integers(0, 1),
    refusals=st.sampled_from([{}, {"inc-w0": 0}]),
    excluded_incarnations=st.sampled_from([frozenset(), frozenset({"inc-w0"})]),
    priority_class=st.sampled_from([0, BATCH_CLASS]),
)


@settings(max_examples=examples(300))
@given(fleet=st.lists(workers, max_size=4), requests=st.lists(asks, max_size=8))
def test_whatever_is_covered_would_be_blocked(fleet, requests) -> None:
    views = [
        make_view(f"w{i}", role, num_running=running, blocks=ledger(60, allocated=used), out_reason=out, is_spot=spot)
        for i, (running, used, out, role, spot) in enumerate(fleet)
    ]
    full = FullModels()
    for ask in requests:
        choice = choose(FleetViews(views), ask, POLICIES, Random(0))
        if (verdict := full.verdict(ask, 1)) is not None:
            assert not isinstance(choice, EndpointChoice)
            assert verdict is PlacementVerdict.FULL or choice.is_blocked
        if not isinstance(choice, EndpointChoice):
            full.learn(ask, choice, 1)


def test_it_learns_from_want_of_seats_and_forgets_with_the_fleet() -> None:
    full, ask = FullModels(), make_sample_ask()
    refusal = choose(FleetViews([make_view(num_running=10)]), ask, POLICIES, Random(0))
    assert not isinstance(refusal, EndpointChoice)
    full.learn(ask, refusal, 7)
    assert full.verdict(ask, 7) is PlacementVerdict.FULL
    assert full.verdict(make_sample_ask(num_prompt_tokens=500), 7) is PlacementVerdict.FULL
    assert full.verdict(make_sample_ask(model_digest="other"), 7) is None
    assert full.verdict(ask, 8) is None


def test_a_wide_request_says_nothing_about_smaller_ones_nor_about_those_with_other_closed_workers() -> None:
    full, wide = FullModels(), make_sample_ask(num_choices=4)
    views = [make_view(num_running=8)]
    refusal = choose(FleetViews(views), wide, POLICIES, Random(0))
    assert not isinstance(refusal, EndpointChoice)
    full.learn(wide, refusal, 7)
    assert full.verdict(wide, 7) is PlacementVerdict.BLOCKED
    assert full.verdict(make_sample_ask(num_choices=4, num_prompt_tokens=500), 7) is None
    assert full.verdict(make_sample_ask(), 7) is None
    single = dataclasses.replace(make_sample_ask(), closed=frozenset({"inc-decode-0"}))
    refusal = choose(FleetViews(views), single, POLICIES, Random(0))
    assert not isinstance(refusal, EndpointChoice)
    full.learn(single, refusal, 7)
    assert full.verdict(single, 7) is PlacementVerdict.BLOCKED
    assert full.verdict(make_sample_ask(), 7) is None
