"""Prompts share steps: a higher class goes first, tenants of a class get equal tokens, nothing is passed for ever.

Counted in steps of an engine over the fake runner, so no clock of the machine takes part.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.examples import examples
from tests.support.worlds.engine_driver import expected, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms

BUDGET = 512
BATCH, TOP = 3, 0
LONG = 32_768
HUGE = {"num_blocks": 8192, "max_model_len": 40_000}


def prompt_of(size, salt=0):
    return [(index * 7 + salt) % 4000 for index in range(size)]


@pytest.fixture
def fair_engine(make_engine):
    """Makes engines with room for a prompt of 32 K tokens."""

    def make(**values):
        times = {"step_time_budget_ms": 0.0, "batch_step_ms": 0.0}
        defaults = {"max_num_batched_tokens": BUDGET, "prefix_cache": False, **times}
        return make_engine(scheduler_config(**{**defaults, **values}), FakeClock(), **HUGE)

    return make


def steps_to_first_token(engine, name):
    for count in range(1, 1000):
        if any(output.key.request_id == name for output in engine.step().outputs):
            return count
    raise AssertionError("no token in 1000 steps")


def ttft_in_steps(engine, size, *, beside):
    """Steps from arrival to the first token, of the top class; ``beside`` a prompt of the lowest that runs already."""
    if beside:
        engine.add(make_request(prompt_of(LONG), "long", max_tokens=2, priority_class=BATCH))
        engine.step()
        engine.step()
    engine.add(make_request(prompt_of(size, 3), "short", max_tokens=2, priority_class=TOP))
    return steps_to_first_token(engine, "short")


def test_a_short_prompt_of_the_top_class_is_not_kept_out_by_a_long_one_of_the_lowest(fair_engine):
    alone = ttft_in_steps(fair_engine(), 20, beside=False)
    assert ttft_in_steps(fair_engine(), 20, beside=True) <= alone + 2


def test_a_prompt_of_some_steps_takes_them_from_the_lower_class(fair_engine):
    alone = ttft_in_steps(fair_engine(), 1024, beside=False)
    assert ttft_in_steps(fair_engine(), 1024, beside=True) <= 1.5 * alone


def test_the_switch_brings_one_prompt_after_the_other_back(fair_engine):
    assert ttft_in_steps(fair_engine(fair_prompts=False), 20, beside=True) > LONG // BUDGET - 4


def test_a_short_prompt_of_the_same_class_and_tenant_does_not_wait_for_a_long_one(fair_engine):
    engine = fair_engine()
    engine.add(make_request(prompt_of(LONG), "long", max_tokens=2))
    engine.step()
    engine.add(make_request(prompt_of(100, 3), "short", max_tokens=2))
    assert steps_to_first_token(engine, "short") <= 4


def test_a_burst_of_short_prompts_of_one_tenant_fills_a_step(fair_engine):
    engine = fair_engine()
    for index in range(40):
        engine.add(make_request(prompt_of(16, index), f"p{index}", max_tokens=2))
    first = next(outputs for outputs in iter(lambda: engine.step().outputs, None) if outputs)
    assert len(first) == BUDGET // 16


def test_steps_stay_full_while_prompts_share_them(fair_engine):
    engine, sizes = fair_engine(), (LONG, 1024, 20, 300, 4000)
    for index, size in enumerate(sizes):
        engine.add(make_request(prompt_of(size, index), f"p{index}", max_tokens=1, priority_class=index % 4))
    count, tokens = 0, {}
    while engine.has_work:
        result = engine.step()
        count += result.num_rows > 0
        tokens |= {output.key.request_id: output.token_ids for output in result.outputs}
    assert count <= 1.03 * sum(sizes) / BUDGET + 1
    assert all(tokens[f"p{i}"] == expected(prompt_of(size, i), 1) for i, size in enumerate(sizes))


def tenant_tokens(engine, requests, num_steps):
    """Tokens that each tenant got; ``requests``: generators by tenant, of which some are always waiting."""
    got = dict.fromkeys(requests, 0)
    for _ in range(num_steps):
        for source in requests.values():
            next(source)
        for tenant, tokens in engine.step().shares.tenants.items():
            got[tenant] += tokens
    return got


def one_huge(engine):
    engine.add(make_request(prompt_of(LONG), "huge", max_tokens=1, tenant="huge"))
    while True:
        yield


def many_small(engine, size=60):
    for count in range(50):
        engine.add(make_request(prompt_of(size, count), f"small{count}", max_tokens=1, tenant="small"))
    while True:
        while engine.status().num_waiting < 50:
            count += 1
            engine.add(make_request(prompt_of(size, count), f"small{count}", max_tokens=1, tenant="small"))
        yield


@pytest.mark.parametrize("budget", [40, 128, BUDGET])
def test_one_huge_prompt_and_fifty_small_ones_of_another_tenant_get_equal_tokens(fair_engine, budget):
    engine = fair_engine(max_num_batched_tokens=budget, max_num_seqs=32)
    requests = {"huge": one_huge(engine), "small": many_small(engine)}
    tenant_tokens(engine, requests, 3)
    got = tenant_tokens(engine, requests, 40)
    assert sum(got.values()) >= 0.97 * 40 * budget
    assert got["huge"] == pytest.approx(got["small"], rel=0.1)


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([5, 24, 100]), num_seqs=st.integers(3, 8))
def test_every_prompt_in_the_batch_goes_on_whatever_comes_after_it(overlap, seed, budget, num_seqs):
    """Bounded bypass: the bound is the setting, and a turn of each prompt that has waited as long."""
    rng, clock, max_passed = random.Random(seed), FakeClock(), 6
    config = scheduler_config(
        max_num_batched_tokens=budget, max_num_seqs=num_seqs, prefix_cache=False, max_passed_steps=max_passed
    )
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=2000, block_size=4, overlap=overlap)), config, clock)
    passed, seen, count = {}, {}, 0
    for _ in range(150):
        while engine.status().num_waiting < 4:
            count += 1
            size, tenant = rng.choice([1, 7, 40, 200]), f"t{rng.randrange(3)}"
            request = make_request(
                prompt_of(size, count), f"r{count}", max_tokens=2, tenant=tenant, arrival_s=clock.now(),
                priority_class=rng.randrange(4),
            )  # fmt: skip
            engine.add(request)
        clock.advance(0.05)
        engine.step()
        for sequence in engine.inspect().sequences:
            if sequence.queue == "running" and sequence.num_output == 0:
                name = sequence.key.request_id
                passed[name] = passed.get(name, -1) + 1 if seen.get(name) == sequence.num_computed else 0
                seen[name] = sequence.num_computed
                assert passed[name] <= max_passed + num_seqs
    assert count > 5


def job(leg, size, **terms):
    return PrefillJob(leg=leg, token_ids=tuple(prompt_of(size, len(leg))), terms=make_terms(**terms))


class Source:
    """An engine that computes for receivers; grants come at once, except to those that are ``late``."""

    def __init__(self, engine):
        self.engine, self.late = engine, set()
        self.done, self.ready, self.tokens = [], [], Counter()

    def step(self):
        result = self.engine.step()
        self.tokens.update(result.shares.tenants)
        for event in result.prefill_events:
            if event.kind is PrefillEventKind.READY and event.leg not in self.late:
                self.engine.grant(event.leg)
            if event.kind is PrefillEventKind.READY:
                self.ready.append(event.leg)
            if event.kind is PrefillEventKind.DONE:
                self.done.append(event.leg)
                self.engine.release_prefill(event.leg)

    def steps_until_done(self, leg):
        for count in range(1, 1000):
            self.step()
            if leg in self.done:
                return count
        raise AssertionError("not done in 1000 steps")


def test_a_long_job_of_the_lowest_class_keeps_no_other_from_its_ready_slot(fair_engine):
    alone, beside = Source(fair_engine()), Source(fair_engine())
    alone.engine.add_prefill(job("short", 20))
    beside.engine.add_prefill(job("long", LONG, priority_class=BATCH))
    for _ in range(3):
        beside.step()
    beside.engine.add_prefill(job("short", 20))
    assert beside.steps_until_done("short") <= alone.steps_until_done("short") + 2


def test_jobs_of_the_lowest_class_that_wait_for_their_grants_leave_seats_to_a_higher_one(fair_engine):
    source = Source(fair_engine())
    for index in range(8):
        source.late.add(f"batch{index}")
        source.engine.add_prefill(job(f"batch{index}", 600, priority_class=BATCH))
    for _ in range(3):
        source.step()
    source.engine.add_prefill(job("top", 20))
    assert source.steps_until_done("top") <= 4


@pytest.mark.parametrize("parks", [True, False])
def test_a_receiver_that_missed_a_grant_has_one_seat_until_it_grants(fair_engine, parks):
    source = Source(fair_engine())
    for index in range(8):
        source.late.add(f"a{index}")
        source.engine.add_prefill(PrefillJob(leg=f"a{index}", token_ids=tuple(prompt_of(600, index)), receiver="a"))
    for _ in range(4):
        source.step()
    assert source.ready == ["a0", "a1", "a2", "a3"]
    if parks:
        for leg in list(source.ready):
            source.engine.park(leg)
    source.step()
    source.step()
    seats = [s for s in source.engine.inspect().sequences if s.queue == "ready"]
    assert len(seats) == (1 if parks else 4)
    source.engine.add_prefill(PrefillJob(leg="b", token_ids=tuple(prompt_of(600, 9)), receiver="b"))
    assert source.steps_until_done("b") <= 4
    for leg in list(source.ready):
        source.engine.grant(leg) if leg != "b" else None
    source.late.clear()
    for leg in [f"a{index}" for index in range(8)]:
        if leg not in source.done:
            source.steps_until_done(leg)
    assert not source.engine.inspect().sequences


def test_tenants_of_one_class_get_equal_tokens_of_a_source(fair_engine):
    source = Source(fair_engine())
    source.engine.add_prefill(job("huge", 20_000, tenant="huge"))
    for index in range(50):
        source.engine.add_prefill(job(f"small{index}", 200, tenant="small"))
    for _ in range(40):
        source.step()
    assert source.tokens["huge"] == pytest.approx(source.tokens["small"], rel=0.1)
    assert source.tokens.total() >= 0.97 * 36 * BUDGET
