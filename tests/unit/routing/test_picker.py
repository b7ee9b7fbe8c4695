"""Filters, the policy `balanced` and the choice; the admission rule against its formula."""

from __future__ import annotations

import dataclasses
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.features import PROTOCOL_VERSION
from stratos.core.placement import WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.dispatch.booking_desk import PrefillMemory
from stratos.routing.filters import Rejection
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, Refusal, choose, missing_features, never_fits
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.worker_view import BookedLoad
from tests.support.worlds.fleet_samples import IDENTITY, ledger, make_request, make_sample_ask, make_view

POLICIES = Policies(RoutingPoliciesConfig(default="balanced"))
PREFILL = WorkerRole.PREFILL


def pick(*views, ask=None, policies=POLICIES, seed=0):
    return choose(FleetViews(views), ask or make_sample_ask(), policies, Random(seed))


def chosen(*views, **kwargs) -> str:
    choice = pick(*views, **kwargs)
    assert isinstance(choice, EndpointChoice)
    return choice.decode.ref.worker_id


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (make_view(out_reason="silent"), Rejection.OUT),
        (make_view(is_draining=True), Rejection.OUT),
        (make_view(not_ready_reason="loading"), Rejection.OUT),
        (make_view(identity=dataclasses.replace(IDENTITY, model_digest="cd")), Rejection.MODEL),
        (make_view(protocol_version=PROTOCOL_VERSION + 2), Rejection.PROTOCOL),
        (make_view(features=frozenset({"watermark"})), Rejection.FEATURES),
        (make_view("bad"), Rejection.EXCLUDED),
        (make_view(blocks=ledger(5)), Rejection.NEVER_FITS),
        (make_view(blocks=ledger(100, allocated=86)), Rejection.KV_ROOM),
        (make_view(blocks=ledger(100, reserved=43, fenced=43)), Rejection.KV_ROOM),
        (make_view(fresh=BookedLoad(num_blocks=895)), Rejection.KV_ROOM),
        (make_view(num_promised_blocks=895), Rejection.KV_ROOM),
        (make_view(blocks=ledger(1000, allocated=800), num_promised_blocks=95), Rejection.KV_ROOM),
        (make_view(num_running=8, num_waiting=2), Rejection.BATCH_SLOTS),
        (make_view(num_running=1, num_free_batch_slots=0, num_waiting=2), Rejection.BATCH_SLOTS),
        (make_view(num_running=6, fresh=BookedLoad(num_seqs=4)), Rejection.BATCH_SLOTS),
    ],
)
def test_each_filter_rejects_for_its_reason(view, reason) -> None:
    ask = make_sample_ask(excluded_incarnations=frozenset({"inc-bad"}), required_features=frozenset({"grammar"}))
    refusal = pick(view, ask=ask)
    assert isinstance(refusal, Refusal)
    assert refusal.rejections == {reason: 1}
    assert refusal.is_blocked == (reason in (Rejection.BATCH_SLOTS, Rejection.KV_ROOM))
    assert never_fits(FleetViews([view]), make_sample_ask()) == (reason is Rejection.NEVER_FITS)


def test_features_are_missing_only_where_no_known_worker_has_them_all() -> None:
    needs_both = make_sample_ask(required_features=frozenset({"grammar", "watermark"}))
    plain, half = make_view("plain", features=frozenset()), make_view("half", features=frozenset({"grammar"}))
    out = make_view("out", out_reason="lost", features=frozenset({"grammar", "watermark"}))
    other = make_view("other", identity=dataclasses.replace(IDENTITY, model_digest="cd"))
    assert missing_features(FleetViews([]), needs_both) == frozenset()
    assert missing_features(FleetViews([plain, half, other]), needs_both) == {"watermark"}
    assert missing_features(FleetViews([plain, half, out]), needs_both) == frozenset()
    assert missing_features(FleetViews([plain]), make_sample_ask()) == frozenset()


def test_cached_blocks_and_ended_sequences_count_as_free() -> None:
    assert chosen(make_view(blocks=ledger(100, cached=100))) == "decode-0"
    assert chosen(make_view(num_running=8, num_waiting=2, num_ended_seqs=1)) == "decode-0"


def test_a_worker_that_is_out_keeps_a_request_from_being_called_impossible() -> None:
    small, big = make_view("small", blocks=ledger(5)), make_view("big", out_reason="lost")
    assert never_fits(FleetViews([small]), make_sample_ask())
    assert not never_fits(FleetViews([small, big]), make_sample_ask())
    assert not never_fits(FleetViews([]), make_sample_ask())
    assert isinstance(pick(small, big), Refusal)


@given(
    total=st.integers(1, 100),
    used=st.integers(0, 100),
    prompt=st.integers(1, 1700),
    max_tokens=st.integers(1, 600),
    choices=st.integers(1, 4),
    mark=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_admission_is_the_formula_at_every_size(total, used, prompt, max_tokens, choices, mark) -> None:
    used = min(used, total)
    request = make_request(num_prompt_tokens=prompt, max_output_tokens_total=max_tokens, num_choices=choices)
    ask = Ask(request=request)
    view = make_view(blocks=ledger(total, allocated=used), kv_watermark=mark)
    budget = min(math.ceil(max_tokens / choices), 256)
    copied = choices - 1 if (prompt - 1) % 16 else 0
    need = math.ceil(prompt / 16) + copied + choices * max(1, math.ceil(budget / 16))
    fits_empty = used == 0 and math.ceil(prompt / 16) <= total
    assert (ask.num_blocks_short(view) <= 0) == (need + used <= mark * total or fits_empty)
    assert ask.never_fits(view) == (need > mark * total)


def test_the_budget_is_the_workers_own_p90_and_returns_may_fill_the_pool() -> None:
    short, long = make_view("short", p90_output_tokens=16), make_view("long", p90_output_tokens=160)
    ask = make_sample_ask(max_output_tokens_total=500)
    assert [ask.need(view).output_blocks for view in (short, long)] == [1, 10]
    full = make_view(blocks=ledger(100, allocated=95), num_promised_blocks=40)
    assert make_sample_ask(num_emitted_tokens=1, max_output_tokens_total=500).num_blocks_short(full) <= 0
    assert ask.num_blocks_short(full) > 0


def test_an_adapter_needs_a_slot_unless_it_is_there() -> None:
    ask = make_sample_ask(adapter_digest="x")
    assert chosen(make_view(resident_adapters=frozenset({"x"})), ask=ask) == "decode-0"
    assert chosen(make_view(num_free_adapter_slots=1), ask=ask) == "decode-0"
    refusal = pick(make_view(num_free_adapter_slots=1, fresh_adapters=frozenset({"y"})), ask=ask)
    assert isinstance(refusal, Refusal)
    assert refusal.rejections == {Rejection.ADAPTER_SLOTS: 1}
    assert refusal.is_blocked
    assert chosen(make_view("a", num_free_adapter_slots=0), make_view("b", num_running=3), ask=ask) == "b"


def test_of_several_routers_each_places_one_request_by_a_status_or_its_part_of_the_room() -> None:
    fresh = BookedLoad(num_requests=1, num_seqs=1, num_blocks=6)
    alone, shared = (make_view(num_running=2, num_routers=n, fresh=fresh) for n in (1, 3))
    assert make_sample_ask(num_choices=6).num_slots_short(make_view(num_running=2, num_routers=3)) <= 0
    assert make_sample_ask(num_choices=5).num_slots_short(alone) <= 0
    # 6 free and a queue of 2: two of eight are this router's, and one is taken
    assert make_sample_ask().num_slots_short(shared) <= 0
    assert make_sample_ask(num_choices=2).num_slots_short(shared) > 0
    assert make_sample_ask(num_prompt_tokens=16 * 280).num_blocks_short(shared) <= 0
    assert make_sample_ask(num_prompt_tokens=16 * 300).num_blocks_short(shared) > 0
    assert make_sample_ask(num_prompt_tokens=16 * 300).num_blocks_short(alone) <= 0


def test_a_move_without_output_is_admitted_like_a_new_request() -> None:
    full = make_view(blocks=ledger(100, allocated=90))
    assert isinstance(pick(full, ask=make_sample_ask(is_move=True)), Refusal)
    assert chosen(full, ask=make_sample_ask(is_move=True, num_emitted_tokens=1)) == "decode-0"


def test_a_worker_that_answered_busy_is_closed_until_its_status_changes() -> None:
    ask = make_sample_ask(refusals={"inc-a": 7})
    assert chosen(make_view("a", version=7), make_view("b", num_running=7), ask=ask) == "b"
    refusal = pick(make_view("a", version=7), ask=ask)
    assert isinstance(refusal, Refusal)
    assert refusal.is_blocked
    assert chosen(make_view("a", version=8), ask=ask) == "a"


def test_more_choices_than_seats_run_once_the_batch_is_nearly_empty() -> None:
    ask = make_sample_ask(num_choices=16, max_output_tokens_total=16)
    assert chosen(make_view(), ask=ask) == "decode-0"
    assert chosen(make_view(num_running=2), ask=ask) == "decode-0"
    assert isinstance(pick(make_view(num_running=3), ask=ask), Refusal)


def test_scorers_prefer_short_queues_then_free_kv_then_the_adapter() -> None:
    assert chosen(make_view("a", num_running=3), make_view("b", num_running=1)) == "b"
    assert chosen(make_view("a", blocks=ledger(1000, allocated=600)), make_view("b")) == "b"
    assert chosen(make_view("a", num_queued_tokens=5000), make_view("b")) == "b"
    ask = make_sample_ask(adapter_digest="lora")
    assert chosen(make_view("a"), make_view("b", resident_adapters=frozenset({"lora"})), ask=ask) == "b"
    # affinity yields to load
    loaded = make_view("b", num_running=7, blocks=ledger(1000, allocated=700), resident_adapters=frozenset({"lora"}))
    assert chosen(make_view("a"), loaded, ask=ask) == "a"


def test_ties_are_broken_by_the_seeded_generator_and_reach_everybody() -> None:
    views = [make_view(name) for name in "abcd"]
    picks = [chosen(*views, seed=seed) for seed in range(100)]
    assert picks == [chosen(*views, seed=seed) for seed in range(100)]
    assert set(picks) == set("abcd")


def test_prefill_workers_pair_by_identity_best_first_at_most_two() -> None:
    other = dataclasses.replace(IDENTITY, rope_variant="other")
    prefill = [
        make_view("p0", PREFILL, num_queued_tokens=900),
        make_view("p1", PREFILL),
        make_view("p2", PREFILL, num_queued_tokens=100),
        make_view("p3", PREFILL, identity=other),
        make_view("p4", PREFILL, out_reason="hung"),
    ]
    choice = pick(make_view(), *prefill)
    assert isinstance(choice, EndpointChoice)
    assert [view.ref.worker_id for view in choice.prefill] == ["p1", "p2"]
    alone = pick(make_view(), *prefill[3:])
    assert isinstance(alone, EndpointChoice)
    assert alone.prefill == ()


@given(loads=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1000)), min_size=1, max_size=8), seed=st.integers())
def test_a_chosen_worker_always_passes_every_bound(loads, seed) -> None:
    views = [make_view(f"w{i}", num_running=r, blocks=ledger(1000, allocated=a)) for i, (r, a) in enumerate(loads)]
    ask = make_sample_ask()
    choice = pick(*views, ask=ask, seed=seed)
    passing = [view for view in views if ask.num_blocks_short(view) <= 0 and ask.num_slots_short(view) <= 0]
    if isinstance(choice, EndpointChoice):
        assert choice.decode in passing
    else:
        assert passing == []


def test_a_recovery_returns_to_the_prefill_worker_that_has_its_prompt() -> None:
    views = [make_view(), make_view("p0", PREFILL, num_queued_tokens=900), make_view("p1", PREFILL)]
    choice = choose(FleetViews(views), make_sample_ask(), POLICIES, Random(0), preferred_prefill="inc-p0")
    assert isinstance(choice, EndpointChoice)
    assert [view.ref.worker_id for view in choice.prefill] == ["p0", "p1"]
    gone = choose(FleetViews(views), make_sample_ask(), POLICIES, Random(0), preferred_prefill="inc-gone")
    assert isinstance(gone, EndpointChoice)
    assert [view.ref.worker_id for view in gone.prefill] == ["p1", "p0"]


def test_the_memory_of_prompts_is_bounded() -> None:
    memory = PrefillMemory(max_requests=2)
    for name in "abc":
        memory.remember(name, f"inc-{name}")
    assert [memory.recall(name) for name in "abc"] == ["", "inc-b", "inc-c"]
