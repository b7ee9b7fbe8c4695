"""Ends of requests that meet each other: a failure, an exhaustion, an abort and a hand-off in the same moment."""

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, DeadlinePassed, Internal, QueueTimeout
from stratos.core.kv import KvRange
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, FinishReason, PrefillJob, RequestKey
from stratos.engine.contract.plan import StepTokens
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, expected, make_request

PACKED = SchedulerConfig(**CROWDED)
KEY = RequestKey("r", 0)


@pytest.mark.parametrize("late_by", range(4))
def test_a_choice_that_is_exhausted_while_its_sibling_expires(make_engine, late_by):
    """The pool is one choice's alone when the deadline ends the request for the other, which waits."""
    clock = FakeClock()
    engine = make_engine(PACKED, clock, num_blocks=5, block_size=4)
    engine.add(make_request(range(9), n=2, max_tokens=30, deadline_s=clock.now() + 5.0))
    run = Run(engine)
    while len(run.tokens.get(("r", 0), [])) < 8 + late_by:
        run.step()
    clock.advance(10.0)
    run.drain()
    assert_at_rest(engine)
    assert not run.errors, "a request that gives tokens already is not queued any more"
    assert set(run.reasons.values()) == {FinishReason.EXHAUSTED}


def test_the_deadline_ends_who_never_ran_and_nobody_else(make_engine):
    clock = FakeClock()
    config = SchedulerConfig(max_num_seqs=2, **CROWDED)
    engine = make_engine(config, clock, num_blocks=6, block_size=4)
    deadline_s = clock.now() + 1.0
    run = Run(engine)
    for i in range(3):
        prompt = [i + j for j in range(8)]
        engine.add(make_request(prompt, f"r{i}", max_tokens=13, arrival_s=float(i), deadline_s=deadline_s))
    while engine.status().num_preemptions == 0:
        run.step()
    clock.advance(5.0)
    run.drain()
    assert_at_rest(engine)
    assert {name: type(error) for name, error in run.errors.items()} == {"r2": QueueTimeout}
    assert run.tokens == {(f"r{i}", 0): expected([i + j for j in range(8)], 13) for i in (0, 1)}


def test_a_resumed_request_has_run_before(make_engine):
    clock = FakeClock()
    engine = make_engine(clock=clock)
    emitted = tuple(expected([1, 2, 3], 2))
    choices = (ChoiceState(index=0), ChoiceState(index=1, emitted_ids=emitted))
    engine.add(make_request([1, 2, 3], choices=choices, deadline_s=clock.now() + 1.0))
    clock.advance(2.0)
    run = Run(engine)
    while engine.has_work:
        result = engine.step()
        run.errors |= result.errors
    assert not run.errors


def test_a_sequence_is_not_cut_for_blocks_that_a_finished_job_gives_back(make_engine):
    """A job whose KV is being sent holds blocks without running; the pool is not the sequence's alone."""
    engine = make_engine(PACKED, num_blocks=6, block_size=4)
    engine.add_prefill(PrefillJob(leg="leg", token_ids=(90, 91, 92, 93, 94)))
    run = Run(engine)
    run.step()
    engine.grant("leg")
    run.drain()
    engine.add(make_request(range(6), max_tokens=18))
    for _ in range(40):
        run.step()
    assert not run.reasons
    engine.release_prefill("leg")
    run.drain()
    assert run.tokens == {("r", 0): expected(range(6), 18)}
    assert_at_rest(engine)


def test_a_commit_that_is_refused_leaves_nothing_behind(make_engine):
    """The grammar cannot be compiled (this engine has no tokenizer): found out when the request joins the batch."""
    engine = make_engine(block_size=4)
    request = make_request(range(10), n=2, grammar=GrammarSpec(GrammarKind.REGEX, "a+"))
    assert engine.reserve(request) is not None
    engine.scatter(KEY, KvRange(0, 9, 0, 1), memoryview(bytes(72)))
    with pytest.raises(BadRequest):
        engine.commit(KEY)
    engine.verify()
    assert_at_rest(engine)
    held = engine.inspect()
    assert held.num_free_batch_slots == held.max_batch_slots
    engine.add(make_request(range(10)))
    assert drain(engine).tokens["r", 0] == expected(range(10))


def test_choices_cancelled_while_their_kv_is_on_its_way_do_not_run(make_engine):
    source, engine = make_engine(block_size=4), make_engine(block_size=4)
    source.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(9))))
    source.step()
    source.grant("leg")
    while source.has_work:
        source.step()
    request = make_request(range(10), n=3)
    engine.reserve(request)
    engine.abort(KEY, (0, 2))
    engine.scatter(KEY, KvRange(0, 9, 0, 1), source.gather("leg", KvRange(0, 9, 0, 1)))
    engine.commit(KEY)
    run = drain(engine)
    assert run.tokens == {("r", 1): expected(range(10))}
    assert_at_rest(engine)
    other = make_request(range(20, 30), n=3)
    engine.reserve(other)
    for index in range(3):
        engine.abort(KEY, (index,))
    with pytest.raises(KeyError):
        engine.commit(KEY)
    assert_at_rest(engine)
    held = engine.inspect()
    assert held.num_free_batch_slots == held.max_batch_slots
    assert held.num_reserved_output_blocks == 0


def test_a_hand_off_of_more_choices_than_batch_slots_is_not_refused_for_ever(make_engine):
    engine = make_engine(SchedulerConfig(max_num_seqs=2), block_size=4)
    source = make_engine(block_size=4)
    source.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(9))))
    source.step()
    source.grant("leg")
    while source.has_work:
        source.step()
    assert engine.reserve(make_request(range(10), n=5)) is not None
    assert engine.reserve(make_request([1, 2], "other")) is None, "both batch slots are taken"
    engine.abort(KEY, (4,))
    engine.scatter(KEY, KvRange(0, 9, 0, 1), source.gather("leg", KvRange(0, 9, 0, 1)))
    engine.commit(KEY)
    assert drain(engine).tokens == {("r", i): expected(range(10)) for i in range(4)}
    assert_at_rest(engine)
    held = engine.inspect()
    assert held.num_free_batch_slots == held.max_batch_slots == 2


def test_a_prompt_without_tokens_is_refused(make_engine):
    engine = make_engine()
    for call in (engine.add, engine.reserve):
        with pytest.raises(BadRequest):
            call(make_request([]))
        with pytest.raises(BadRequest):
            call(make_request([1, 2], choices=(ChoiceState(index=0, finished=True),)))
    assert not engine.has_work


def test_the_receipt_is_right_when_the_first_choice_was_cancelled(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=4), block_size=4)
    engine.add(make_request(range(11), n=3))
    run = Run(engine)
    run.step()
    engine.abort(KEY, (0,))
    run.drain()
    stats = run.stats["r"]
    assert stats.num_prompt_tokens == 11
    assert stats.num_cached_tokens + stats.num_recomputed_tokens >= 11
    assert run.tokens == {("r", i): expected(range(11)) for i in (1, 2)}


class SilentRunner(FakeRunner):
    """Gives no token for one sequence."""

    def collect(self, handle):
        tokens = super().collect(handle)
        kept = [token for token in tokens.tokens if token.token_id != self.silent]
        return StepTokens(tokens=kept, errors=tokens.errors)


def test_a_row_without_its_token_ends_its_request(overlap):
    runner = SilentRunner(FakeConfig(overlap=overlap))
    runner.silent = expected([1, 2, 3])[3]
    engine = EngineCore(runner, SchedulerConfig())
    engine.add(make_request([1, 2, 3], "bad"))
    engine.add(make_request([7, 8], "good"))
    run = Run(engine).drain(60)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens["good", 0] == expected([7, 8])
    assert_at_rest(engine)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_the_time_of_the_whole_answer_ends_all_choices_wherever_they_are(make_engine, steps):
    """Before it runs, while its prompt is computed, in the middle of its output; a neighbour notices nothing."""
    clock = FakeClock()
    engine = make_engine(clock=clock)
    run = Run(engine)
    engine.add(make_request([4, 5, 6], "neighbour", max_tokens=12))
    engine.add(make_request([1, 2, 3], "late", n=2, max_tokens=30, end_s=clock.now() + 1.0))
    for _ in range(steps):
        run.step()
    clock.advance(2.0)
    run.drain()
    assert_at_rest(engine)
    assert {name: type(error) for name, error in run.errors.items()} == {"late": DeadlinePassed}
    assert run.tokens[("neighbour", 0)] == expected([4, 5, 6], 12)
