"""Paused rows of the lowest class end on time, whatever comes above them: room, drafts, deadlines, aborts and sleep."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.common.errors import DeadlinePassed
from stratos.core.requests.limits import BATCH_CLASS
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler.pauses import BatchPauses
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SpeculationConfig
from tests.support.fakes.proposers import proposers
from tests.support.worlds.engine_driver import Run, assert_at_rest, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms

VOCAB = 4096
MOST = 3
"""Steps that a row may be paused for."""


def prompt_of(size, salt=0):
    return [(index * 7 + salt) % 4000 for index in range(size)]


def engine_of(*, num_blocks=2000, overlap=False, proposer=None, clock=None, **values):
    defaults = {"max_num_batched_tokens": 32, "prefix_cache": False, "step_time_budget_ms": 0.0, "batch_step_ms": 0.0}
    config = scheduler_config(
        **{**defaults, "max_passed_steps": MOST, "speculation": SpeculationConfig(is_adaptive=False), **values}
    )
    runner = FakeRunner(FakeConfig(num_blocks=num_blocks, block_size=4, max_model_len=4000, overlap=overlap))
    return EngineCore(runner, config, clock or FakeClock(), proposer=proposer)


def batch(name, size=5, max_tokens=200, **fields):
    return make_request(prompt_of(size, len(name)), name, max_tokens=max_tokens, priority_class=BATCH_CLASS, **fields)


def told(run, name):
    """In which of the steps so far a request got tokens."""
    return [n for n, result in enumerate(run.results) if any(out.key.request_id == name for out in result.outputs)]


def longest_pause(run, name):
    """Most steps between two tokens of a stream, the last step of the run included."""
    return max(after - before - 1 for before, after in pairwise([*told(run, name), len(run.results)]))


def begun(engine, num=4, **fields):
    """A run in which so many streams of the lowest class have begun."""
    run = Run(engine)
    for number in range(num):
        engine.add(batch(f"stream{number}", **fields))
    while len(run.tokens) < num:
        run.step()
    return run


@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_above_without_end_let_every_row_run_in_time(overlap):
    run = begun(engine_of(overlap=overlap))
    for number in range(60):
        if number % 2 == 0:
            run.engine.add(make_request(prompt_of(100, number), f"top{number}", max_tokens=1))
        run.step()
    assert {longest_pause(run, f"stream{number}") for number in range(4)} == {MOST}


def test_rows_run_in_time_where_a_prompt_above_finds_no_room_and_prompts_of_their_class_fill_the_step():
    run = begun(engine_of(num_blocks=400))
    for number in range(3):
        run.engine.add(batch(f"prompt{number}", 300))
    run.step()
    run.engine.add(make_request(prompt_of(1300), "top", max_tokens=1))
    for _ in range(20):
        run.step()
    assert "top" not in {name for name, _ in run.tokens}
    assert max(longest_pause(run, f"stream{number}") for number in range(4)) <= MOST


def test_the_last_token_of_a_prompt_that_was_handed_off_has_its_step_for_itself():
    run = begun(engine_of(), num=2)
    run.engine.reserve(make_request(prompt_of(33), "handed", max_tokens=3))
    assert {out.key.request_id for out in run.step().outputs} == {"stream0", "stream1"}, "its KV is on its way"
    run.engine.commit(RequestKey("handed", 0))
    assert {out.key.request_id for out in run.step().outputs} == {"handed"}
    assert {out.key.request_id for out in run.step().outputs} == {"handed", "stream0", "stream1"}


@pytest.mark.parametrize("overlap", [False, True])
def test_after_its_first_token_a_stream_above_pauses_none(overlap):
    run = begun(engine_of(overlap=overlap), num=2)
    run.engine.reserve(make_request(prompt_of(33), "handed", max_tokens=9))
    run.engine.commit(RequestKey("handed", 0))
    while ("handed", 0) not in run.reasons:
        run.step()
    assert longest_pause(run, "stream0") == 1


def test_a_prompt_of_the_lowest_class_that_was_passed_too_often_gets_a_block_however_little_time_there_is():
    top, passed, late = (
        Sequence(seq_id=number, tokens=prompt_of(40), root=b"", terms=make_terms(priority_class=priority_class))
        for number, priority_class in enumerate((0, BATCH_CLASS, BATCH_CLASS))
    )
    passed.num_passed_steps = MOST
    pauses = BatchPauses(scheduler_config(max_passed_steps=MOST, batch_step_ms=25.0), block_size=4)
    pauses.look([top, passed, late], [], 0.0)
    budget = SimpleNamespace(room_within=lambda first, limit_s: 10)
    assert pauses.cut({top: 20, passed: 8, late: 8}, top, budget) == {top: 20, passed: 4}
    assert pauses.cut({top: 7, late: 8}, top, budget) == {top: 7, late: 3}


def test_the_last_token_of_a_prompt_that_was_cached_has_its_step_for_itself():
    run = begun(engine_of(prefix_cache=True), num=2)
    prompt = prompt_of(33, 9)
    run.engine.add(make_request(prompt, "first", max_tokens=1))
    while ("first", 0) not in run.tokens:
        run.step()
    run.engine.add(make_request(prompt, "again", max_tokens=3))
    assert {out.key.request_id for out in run.step().outputs} == {"again"}
    assert {out.key.request_id for out in run.step().outputs} == {"again", "stream0", "stream1"}


@pytest.mark.parametrize("overlap", [False, True])
def test_the_deadline_of_a_paused_row_is_its_end(overlap):
    clock = FakeClock()
    run = begun(engine_of(overlap=overlap, clock=clock, max_passed_steps=100), end_s=clock.now() + 5)
    run.engine.add(make_request(prompt_of(900), "top", max_tokens=1))
    for _ in range(4):
        run.step()
    assert not run.errors
    clock.advance(6)
    run.step()
    assert {name: type(error) for name, error in run.errors.items()} == {
        f"stream{number}": DeadlinePassed for number in range(4)
    }
    assert_at_rest(run.drain().engine)


@pytest.mark.parametrize("overlap", [False, True])
def test_paused_rows_that_are_handed_back_leave_nothing_and_resume_elsewhere(overlap):
    """A drain, and what goes before sleep: gateways take the streams away in the middle of a pause."""
    run = begun(engine_of(overlap=overlap, max_passed_steps=100), max_tokens=12)
    run.engine.add(make_request(prompt_of(300), "top", max_tokens=1))
    for _ in range(3):
        run.step()
    for number in range(4):
        run.engine.abort(RequestKey(f"stream{number}", 0))
    assert run.drain().tokens["top", 0] == expected(prompt_of(300), 1)
    assert_at_rest(run.engine)
    for number in range(4):
        wanted = expected(prompt_of(5, len("stream0")), 12)
        assert wanted[: len(run.tokens[f"stream{number}", 0])] == run.tokens[f"stream{number}", 0]


@given(
    seed=st.integers(0, 10**6),
    overlap=st.booleans(),
    drafts=st.sampled_from(["", "right", "wrong after two"]),
    num_blocks=st.sampled_from([60, 2000]),
    limit_ms=st.sampled_from([0.0, 25.0]),
)
def test_no_token_is_lost_or_changed_and_no_row_waits_beyond_its_bound(seed, overlap, drafts, num_blocks, limit_ms):
    rng = random.Random(seed)
    arrivals, wanted, aborted = {}, {}, set()
    for number in range(rng.randrange(4, 16)):
        size, most = rng.choice([1, 9, 60]), rng.randrange(1, 20)
        name, prompt = f"r{number}", prompt_of(size, number)
        wanted[name] = expected(prompt, most)
        request = make_request(prompt, name, max_tokens=most, priority_class=rng.choice([0, 2, 3, 3, 3]))
        arrivals.setdefault(rng.randrange(30), []).append(request)
    streams = {(name, 0): tokens for name, tokens in wanted.items()}
    proposer = proposers(streams, VOCAB)[drafts] if drafts else None
    off = {} if proposer else {"speculation": SpeculationConfig(method="off")}
    run = Run(engine_of(num_blocks=num_blocks, overlap=overlap, proposer=proposer, batch_step_ms=limit_ms, **off))
    for step in range(600):
        for request in arrivals.pop(step, ()):
            run.engine.add(request)
        if rng.random() < 0.03:
            aborted.add(name := rng.choice([*wanted]))
            run.engine.abort(RequestKey(name, 0))
        run.step()
        if not arrivals and not run.engine.has_work:
            break
    assert_at_rest(run.engine)
    for name, tokens in wanted.items():
        got = run.tokens.get((name, 0), [])
        assert got == tokens[: len(got)] if name in aborted else got == tokens
        if num_blocks == 2000 and name not in aborted:
            times = told(run, name)
            assert all(after - before - 1 <= MOST for before, after in pairwise(times)), (name, times)
