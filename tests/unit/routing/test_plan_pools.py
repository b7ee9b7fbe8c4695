"""Pools of plans: who is served where first, and whose KV is kept."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratos.core.placement import WorkerRole
from stratos.core.requests.terms import Share
from stratos.routing.admission import Ask
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, Refusal, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from tests.support.worlds.fleet_samples import ledger, make_request, make_view

PREMIUM = Share(pools=frozenset({"fast"}))
BATCH = Share(kept_kv={"fast": 0.3})


def chosen(share: Share, *views: Any, **request: Any) -> EndpointChoice | Refusal:
    ask = Ask(request=make_request(share=share, **request), max_waiting_per_worker=2)
    return choose(FleetViews(views), ask, Policies(RoutingPoliciesConfig(default="least_loaded")), Random(1))


def worker_of(choice: EndpointChoice | Refusal) -> str:
    assert isinstance(choice, EndpointChoice)
    return choice.worker.ref.worker_id


def test_a_plan_is_served_by_its_pool_first_while_that_has_a_slot() -> None:
    other = make_view("decode-0")
    assert worker_of(chosen(PREMIUM, other, make_view("decode-1", pool="fast", num_running=7))) == "decode-1"
    full = make_view("decode-1", pool="fast", num_running=8)
    assert worker_of(chosen(PREMIUM, other, full)) == "decode-0", "it does not wait there while others are idle"
    assert worker_of(chosen(PREMIUM, make_view("decode-0", num_running=8), full)) in {"decode-0", "decode-1"}
    assert worker_of(chosen(PREMIUM, other)) == "decode-0", "no worker has the label"


def test_others_go_to_a_reserved_worker_last() -> None:
    reserved = make_view("decode-1", pool="fast")
    assert worker_of(chosen(BATCH, make_view("decode-0", num_running=7), reserved)) == "decode-0"
    assert worker_of(chosen(BATCH, make_view("decode-0", num_running=8), reserved)) == "decode-1"
    assert worker_of(chosen(Share(), make_view("decode-0", num_running=7), reserved)) == "decode-1"


@pytest.mark.parametrize(("allocated", "fits"), [(560, True), (620, False)])
def test_reserved_kv_is_left_free_by_others_alone(allocated: int, fits: bool) -> None:
    view = make_view(pool="fast", blocks=ledger(1000, allocated=allocated))
    assert isinstance(chosen(BATCH, view), EndpointChoice) is fits, "0.9 of the pool less 0.3"
    assert isinstance(chosen(PREMIUM, view), EndpointChoice)
    assert isinstance(chosen(Share(kept_kv={"other": 0.3}), view), EndpointChoice)
    assert isinstance(chosen(BATCH, view, is_move=True), EndpointChoice), "a stream that has begun gets back in"
    if not fits:
        refused = chosen(BATCH, view)
        assert isinstance(refused, Refusal)
        assert refused.is_blocked
        assert str(refused) == "kv_room: 1"


def test_a_request_too_large_for_what_is_left_may_use_the_reserve() -> None:
    large = {"num_prompt_tokens": 700 * 16, "max_output_tokens_total": 16}
    assert isinstance(chosen(BATCH, make_view(pool="fast", num_promised_blocks=1), **large), EndpointChoice)


def test_reserves_bind_no_batch_slots() -> None:
    ask = Ask(request=make_request(share=BATCH), max_waiting_per_worker=2)
    assert ask.num_slots_short(make_view(pool="fast", num_running=9)) <= 0
    assert not ask.is_share_bound
    assert ask.surely_fits([make_view(pool="fast"), make_view()]) == [False, True]


def test_prompts_are_computed_by_the_pool_first() -> None:
    sources = [make_view(f"prefill-{n}", WorkerRole.PREFILL, pool="fast" * (n == 1)) for n in range(3)]
    choice = chosen(PREMIUM, make_view(), *sources)
    assert isinstance(choice, EndpointChoice)
    assert [view.ref.worker_id for view in choice.prefill] == ["prefill-1"]
    choice = chosen(Share(), make_view(), *sources)
    assert isinstance(choice, EndpointChoice)
    assert len(choice.prefill) == 2
