"""The admission mark: what waits, what is refused, what always gets back in, and where budgets come from."""

import dataclasses
import random

import pytest

from stratos.common.errors import ContextLengthExceeded
from stratos.core.requests.records import ChoiceState, PrefillJob, RequestKey
from stratos.core.rules.quantile import RecentQuantile
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.worlds.engine_driver import make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import with_terms


@pytest.fixture
def make_engine(overlap):
    def make(num_blocks=20, **config):
        runner = FakeRunner(FakeConfig(num_blocks=num_blocks, block_size=4, overlap=overlap))
        return EngineCore(runner, scheduler_config(**{"max_num_waiting": 5000, "max_num_seqs": 3000, **config}))

    return make


def sized_request(name, prompt, max_tokens, emitted=(), n=1, salt=b""):
    choices = [ChoiceState(index=i, emitted_ids=emitted) for i in range(n)]
    return make_request(range(prompt), name, choices=choices, max_tokens=max_tokens, cache_salt=salt or name.encode())


@pytest.mark.parametrize(("num_blocks", "runs"), [(6, 1), (7, 0)])
def test_a_request_runs_up_to_the_mark_and_waits_above_it(make_engine, num_blocks, runs):
    engine = make_engine()
    engine.reserve(sized_request("held", 41, 1))
    engine.add(sized_request("new", 4 * num_blocks, 4))
    engine.step()
    assert (engine.status().num_running, engine.status().num_waiting) == (runs, 1 - runs), "10 + 1 + 6 + 1 = 0.9 * 20"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "n", "fits"), [(68, 4, 1, True), (69, 4, 1, False), (60, 8, 2, False)]
)
def test_alone_above_the_mark_is_refused_at_once(make_engine, prompt, max_tokens, n, fits):
    engine = make_engine()
    request = sized_request("r", prompt, max_tokens, n=n)
    if fits:
        engine.add(request)
        return
    with pytest.raises(ContextLengthExceeded):
        engine.add(request)
    with pytest.raises(ContextLengthExceeded):
        engine.reserve(request)
    assert engine.status().blocks.free == 20
    assert not engine.has_work


def test_a_job_needs_no_room_for_output_but_keeps_the_mark(make_engine):
    engine = make_engine()
    engine.add_prefill(PrefillJob(leg="fits", token_ids=tuple(range(72))))
    with pytest.raises(ContextLengthExceeded):
        engine.add_prefill(PrefillJob(leg="never", token_ids=tuple(range(73))))
    engine.step()
    assert engine.status().blocks.allocated == 18
    engine.add_prefill(PrefillJob(leg="waits", token_ids=(900, 901)))
    assert not engine.step().prefill_events
    engine.release_prefill("fits")
    assert engine.step().prefill_events


def test_who_emitted_tokens_gets_back_into_the_whole_pool(make_engine):
    engine = make_engine()
    engine.reserve(sized_request("held", 61, 4))
    assert engine.status().blocks.reserved == 15
    engine.add(sized_request("back", 14, 30, emitted=(1, 2)))
    engine.step()
    assert engine.status().num_running == 1, "15 + 4 + 1 blocks are the whole pool"


def rest_request(prompt, max_tokens, emitted, prior):
    """Goes on from an answer of ``prior`` tokens."""
    request = sized_request("rest", prompt, max_tokens, emitted=tuple(range(emitted)))
    return dataclasses.replace(request, num_prior_tokens=prior)


@pytest.mark.parametrize(("emitted", "runs"), [(2, 0), (3, 1)])
def test_who_goes_on_with_another_answer_waits_like_a_new_request_until_it_has_a_token(make_engine, emitted, runs):
    engine = make_engine()
    engine.reserve(sized_request("held", 61, 4))
    engine.add(rest_request(13, 30, emitted, prior=2))
    engine.step()
    assert engine.status().num_running == runs, "15 + 4 + 1 blocks are the whole pool"


@pytest.mark.parametrize(("emitted", "fits"), [(29, True), (33, False)])
def test_the_rest_of_an_answer_is_refused_above_the_mark_by_all_that_it_begins_with(make_engine, emitted, fits):
    engine = make_engine()
    request = rest_request(40, emitted + 1, emitted, prior=emitted)
    if fits:
        engine.add(request)
        return
    with pytest.raises(ContextLengthExceeded):
        engine.add(request)


def test_a_choice_without_tokens_gets_back_in_with_its_siblings(make_engine):
    engine = make_engine()
    engine.reserve(sized_request("held", 61, 4))
    choices = (ChoiceState(index=0), ChoiceState(index=1, emitted_ids=(5,)))
    engine.add(dataclasses.replace(sized_request("back", 12, 40), choices=choices))
    engine.step()
    assert engine.status().num_waiting == 0, "15 + 3 + 2 blocks are above the watermark, for a new request"


def test_a_hand_off_takes_no_room_that_somebody_before_it_waits_for(make_engine):
    engine = make_engine(prefix_cache=False)
    engine.add(sized_request("runs", 40, 12))
    engine.step()
    engine.add(sized_request("waits", 30, 4))
    engine.step()
    assert engine.status().num_waiting == 1
    later = with_terms(sized_request("later", 6, 4), arrival_s=1.0)
    assert engine.reserve(later) is None, "13 promised + 3 are less than 18"
    assert (
        engine.reserve(with_terms(dataclasses.replace(later, key=RequestKey("urgent", 0)), priority_class=-1))
        is not None
    )
    back = with_terms(sized_request("back", 6, 4, emitted=(1,)), arrival_s=1.0)
    assert engine.reserve(back) is not None
    for name in ("urgent", "back", "waits"):
        engine.abort(RequestKey(name, 0))
    assert engine.reserve(later) is not None


def test_who_comes_back_is_let_in_when_the_batch_can_grow_until_its_next_token(make_engine):
    engine = make_engine(num_blocks=20, max_num_batched_tokens=8, prefix_cache=False, kv_watermark=1.0)
    for index in range(3):
        engine.add(sized_request(f"runs{index}", 12, 40, emitted=(1, 2)))
    while engine.status().blocks.free > 4:
        engine.step()
    engine.add(sized_request("back", 10, 40, emitted=(1,)))
    engine.step()
    assert engine.status().num_waiting == 1, "3 of 4 blocks are its own; the three that run need more in between"


def test_a_shared_prefix_in_use_costs_nothing_again(make_engine):
    engine = make_engine(max_num_batched_tokens=64)
    engine.add(sized_request("a", 48, 8, salt=b"same"))
    engine.step()
    engine.step()  # blocks have names once they are collected
    engine.add(sized_request("b", 48, 8, salt=b"same"))
    engine.step()
    assert engine.status().num_running == 2, "13 + 1 + 2 blocks; counted twice it would be 13 + 12 + 2"


def test_budget_is_the_p90_of_what_ended_and_follows_it(make_engine):
    engine = make_engine(num_blocks=4000, default_output_tokens=64)

    def reserved_blocks(max_tokens, n=1):
        engine.reserve(sized_request("probe", 4, max_tokens, n=n))
        num_blocks = engine.inspect().num_reserved_output_blocks
        engine.abort(RequestKey("probe", 0))
        return num_blocks

    assert reserved_blocks(1000) == 16
    for index in range(40):
        engine.add(sized_request(f"r{index}", 2, 1 + index))
    while engine.has_work:
        engine.step()
    assert engine.inspect().expected_output_tokens == 37, "of 4 .. 40"
    assert reserved_blocks(1000, n=2) == 21, "the second choice copies the block that the prompt ends in"
    assert reserved_blocks(3) == 1


def test_probes_of_one_token_do_not_shrink_the_budget(make_engine):
    engine = make_engine(num_blocks=400, default_output_tokens=64)
    for index in range(60):
        engine.add(sized_request(f"probe{index}", 2, 1))
        engine.step()
    assert engine.inspect().expected_output_tokens == 64


def test_a_request_accepted_once_is_not_too_large_later(make_engine, monkeypatch):
    engine = make_engine(num_blocks=20, default_output_tokens=4, max_num_seqs=1)
    engine.add(sized_request("runs", 4, 8))
    engine.step()
    engine.add(sized_request("waits", 60, 1000))
    monkeypatch.setattr(RecentQuantile, "value", 500)
    engine.abort(RequestKey("runs", 0))
    engine.step()
    assert engine.status().num_running == 1


@pytest.mark.parametrize(("counts", "runs"), [(True, 1), (False, 2)])
def test_output_promised_to_others_counts_until_it_is_taken(make_engine, counts, runs):
    engine = make_engine(admission_counts_budgets=counts, prefix_cache=False)
    engine.add(sized_request("first", 9, 40))
    engine.step()
    engine.add(sized_request("second", 17, 4))
    engine.step()
    assert engine.status().num_running == runs, "3 + 10 promised + 5 + 1 are more than 18"


def test_promises_of_hand_offs_end_with_them(make_engine):
    engine = make_engine()
    engine.reserve(sized_request("held", 21, 40))
    assert engine.inspect().num_reserved_output_blocks == 10
    engine.abort(RequestKey("held", 0))
    assert engine.inspect().num_reserved_output_blocks == 0
    engine.reserve(sized_request("kept", 21, 20, n=2))
    assert engine.inspect().num_reserved_output_blocks == 10
    engine.commit(RequestKey("kept", 0))
    assert engine.inspect().num_reserved_output_blocks == 10


def test_refusals_are_counted(make_engine):
    engine = make_engine()
    engine.reserve(sized_request("held", 61, 4))
    engine.add(sized_request("waits", 20, 4))
    engine.step()
    assert engine.reserve(sized_request("busy", 20, 4)) is None
    assert engine.status().num_admission_refusals == 2


def test_recent_quantile_equals_a_sort_of_its_window():
    rng, quantile, seen = random.Random(3), RecentQuantile(0.9, default=7, window=50, min_samples=5), []
    for count in range(300):
        assert quantile.value == (7 if count < 5 else sorted(seen[-50:])[-(-9 * min(count, 50) // 10) - 1])
        seen.append(rng.randrange(40))
        quantile.add(seen[-1])
