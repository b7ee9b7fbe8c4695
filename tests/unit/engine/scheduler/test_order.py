"""Order of service: classes, ageing and its quota, deadlines; none starves, and the preempted keep their place."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.requests.limits import BATCH_CLASS
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler.order import IMPLIED_DEADLINE_S, ServiceOrder
from stratos.engine.sequence import Sequence, Wait
from stratos.engine.settings import SchedulerConfig
from tests.support.examples import examples
from tests.support.worlds.engine_driver import CROWDED, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms

LOWEST_AGED = BATCH_CLASS - 1
"""The lowest class that reaches the top."""


def make_sequence(seq_id, priority_class=0, arrival_s=0.0, deadline_s=None, since_s=0.0, past_s=0.0):
    return Sequence(
        seq_id=seq_id,
        tokens=[1],
        root=b"",
        terms=make_terms(priority_class=priority_class, arrival_s=arrival_s, deadline_s=deadline_s),
        wait=Wait(past_s=past_s, since_s=since_s),
    )


def make_order(admissions_per_aged=10):
    return ServiceOrder(ageing_step_s=2.0, admissions_per_aged=admissions_per_aged)


def admitted(order, waiting, now, count):
    """Ids of the next ``count`` admissions."""
    left, ids = list(waiting), []
    for sequence in order.admissions(waiting, now):
        left.remove(sequence)
        order.count(sequence, {s.terms.priority_class for s in left})
        ids.append(sequence.seq_id)
        if len(ids) == count:
            break
    return ids


def test_a_stream_that_moved_keeps_its_arrival():
    here = [make_sequence(0, arrival_s=8.0), make_sequence(1, arrival_s=9.0)]
    moved = make_sequence(2, arrival_s=10.0)
    moved.terms = dataclasses.replace(moved.terms, age_s=60.0)
    assert admitted(make_order(), [*here, moved], 10.0, 3) == [2, 0, 1]


def test_class_then_deadline_then_arrival():
    waiting = [
        make_sequence(0, priority_class=1, arrival_s=0.0),
        make_sequence(1, arrival_s=0.3),
        make_sequence(2, arrival_s=0.2),
        make_sequence(3, arrival_s=0.4, deadline_s=5.0),
        make_sequence(4, arrival_s=0.1, deadline_s=0.1 + IMPLIED_DEADLINE_S + 60),
    ]
    assert admitted(make_order(), waiting, 1.0, 5) == [3, 2, 1, 4, 0]


@pytest.mark.parametrize(("waited_s", "reached"), [(1.99, 2), (2.0, 1), (3.99, 1), (4.0, 0), (60.0, 0)])
def test_one_class_up_at_two_seconds_and_at_each_further_two(waited_s, reached):
    sequence = make_sequence(0, priority_class=2, since_s=100.0)
    assert make_order().key(sequence, 100.0 + waited_s).service_class == reached


def test_only_waiting_ages_and_waits_add_up():
    order, sequence = make_order(), make_sequence(0, priority_class=2, since_s=0.0)
    sequence.wait.end(2.5)
    running = order.key(sequence, 2.5)
    assert running.service_class == 1
    assert order.key(sequence, 1000.0) == running
    sequence.wait.begin(1000.0)
    assert order.key(sequence, 1001.4).service_class == 1
    assert order.key(sequence, 1001.5).service_class == 0


def test_aged_get_one_of_ten_and_the_oldest_goes_first():
    fresh = [make_sequence(i, arrival_s=10.0, since_s=10.0) for i in range(30)]
    aged = [make_sequence(100 + i, priority_class=2, arrival_s=5.0 - i, since_s=5.0 - i) for i in range(4)]
    ids = admitted(make_order(), [*fresh, *aged], 11.0, 34)
    places = [place for place, seq_id in enumerate(ids) if seq_id >= 100]
    assert [ids[place] for place in places] == [103, 102, 101, 100]
    assert places[:3] == [0, 10, 20]


def test_without_a_higher_class_the_quota_rests():
    aged = [make_sequence(i, priority_class=2, arrival_s=i / 10, since_s=0.0) for i in range(9)]
    order = make_order()
    assert admitted(order, aged, 50.0, 9) == list(range(9))
    late = [make_sequence(20, since_s=50.0, arrival_s=50.0), make_sequence(21, priority_class=2, since_s=0.0)]
    assert admitted(order, late, 50.0, 2) == [21, 20], "what met no higher class has not used the quota"


def sized_request(name, prompt=4, max_tokens=4, priority_class=0, arrival_s=0.0, deadline_s=None):
    order = {"priority_class": priority_class, "arrival_s": arrival_s, "deadline_s": deadline_s}
    return make_request(range(prompt), name, max_tokens=max_tokens, **order)


def ended_in(result):
    return [output.key.request_id for output in result.outputs if output.finish_reason]


def test_victim_is_who_would_be_admitted_last_and_comes_back_first(overlap):
    clock = FakeClock()
    fake = FakeRunner(FakeConfig(num_blocks=6, block_size=4, overlap=overlap))
    config = scheduler_config(prefix_cache=False, max_num_seqs=3, **CROWDED)
    engine = EngineCore(fake, config, clock)
    now = clock.now()
    engine.add(sized_request("urgent", 7, 12, deadline_s=now + 5, arrival_s=now))
    engine.add(sized_request("batch", 7, 8, priority_class=2, arrival_s=now - 1))
    engine.add(sized_request("normal", 7, 8, priority_class=1, arrival_s=now))
    engine.step()
    engine.add(sized_request("late", 7, 8, priority_class=2, arrival_s=now + 1))
    ended = list(itertools.chain.from_iterable(ended_in(engine.step()) for _ in range(60)))
    assert engine.status().num_preemptions
    assert ended == ["urgent", "normal", "batch", "late"]


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=examples(25), deadline=None)
@given(
    low=st.lists(st.tuples(st.integers(1, LOWEST_AGED), st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=6),
    num_slots=st.integers(1, 3),
    step_s=st.sampled_from([0.05, 0.3]),
)
def test_nobody_starves_under_an_endless_flood_of_the_highest_class(overlap, low, num_slots, step_s):
    """Above the batch class. A batch slot comes free at least every ``max_steps``; one of ten admissions is the oldest
    aged request's.
    """
    clock, longest, num_output = FakeClock(), 30, 5
    config = SchedulerConfig(max_num_seqs=num_slots, max_num_batched_tokens=8 + num_slots)
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=512, overlap=overlap)), config, clock)
    max_steps = num_slots * longest // 8 + 1 + num_output
    waited = {}
    for index, (priority_class, prompt, max_tokens) in enumerate(low):
        engine.add(sized_request(f"low{index}", prompt, max_tokens, priority_class, clock.now()))
        waited[f"low{index}"] = 0
    bound = 3 * 2.0 / step_s + 1 + 10 * (len(low) + 1) * max_steps
    for number in itertools.count():
        while engine.status().num_waiting < len(low) + 2:
            engine.add(sized_request(f"top{engine.status().num_waiting}-{number}", 9, 2, 0, clock.now()))
        clock.advance(step_s)
        for name in ended_in(engine.step()):
            waited.pop(name, None)
        engine.verify()
        waited = {name: steps + 1 for name, steps in waited.items()}
        if not waited:
            break
        assert max(waited.values()) <= bound


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=examples(40), deadline=None)
@given(
    load=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=10),
    num_blocks=st.integers(9, 20),
    mark=st.sampled_from([0.9, 1.0]),
    budget=st.sampled_from([3, 16]),
)
def test_every_request_ends_within_the_work_there_is(overlap, load, num_blocks, mark, budget):
    """Every step computes a token while there is work, so steps are bounded by tokens, preempted ones counted again."""
    clock = FakeClock()
    config = scheduler_config(
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        prefix_cache=False,
        kv_watermark=mark,
        default_output_tokens=3,
    )
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=num_blocks, block_size=4, overlap=overlap)), config, clock)
    for index, (priority_class, prompt, max_tokens) in enumerate(load):
        engine.add(sized_request(f"r{index}", prompt, max_tokens, priority_class, clock.now()))
    steps, ended = 0, []
    while engine.has_work:
        clock.advance(0.2)
        result = engine.step()
        engine.verify()
        ended += ended_in(result)
        steps += 1
        work = sum(prompt + max_tokens for _, prompt, max_tokens in load)
        assert steps <= work + engine.status().num_preemptions * 32
    assert len(ended) == len(load)
