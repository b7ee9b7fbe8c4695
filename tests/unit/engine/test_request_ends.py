"""Ends of requests that meet each other: a failure, an exhaustion, an abort and a hand-off in the same moment."""

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, Internal, QueueTimeout
from stratos.core.grammar import GrammarKind, GrammarSpec
from stratos.core.request import ChoiceState, EngineRequest, FinishReason, PrefillJob, RequestKey
from stratos.core.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake import FakeConfig, FakeRunner, fake_generate
from stratos.engine.plan import StepTokens
from stratos.engine.settings import SchedulerConfig

PACKED = SchedulerConfig(admission_mark=1.0, admission_counts_budgets=False, default_output_tokens=1)
KEY = RequestKey("r", 0)


def make_request(prompt, name="r", n=1, choices=None, arrival=0.0, deadline_s=None, **params):
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=choices or tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params}),
        seed=1,
        arrival_s=arrival,
        deadline_s=deadline_s,
    )


def expected(prompt, num_tokens=8):
    return fake_generate(prompt, num_tokens, prefill_weight=1, decode_weight=1)


class Run:
    """Steps an engine and keeps what came out."""

    def __init__(self, engine):
        self.engine, self.tokens, self.reasons, self.errors = engine, {}, {}, {}
        self.stats = {}

    def step(self):
        result = self.engine.step()
        self.engine.verify()
        self.errors |= {key.request_id: error for key, error in result.errors.items()}
        self.stats |= {key.request_id: stats for key, stats in result.started_stats.items()}
        for output in result.outputs:
            name = (output.key.request_id, output.index)
            tokens = self.tokens.setdefault(name, [])
            assert output.offset == len(tokens)
            tokens.extend(output.token_ids)
            if output.finish_reason:
                self.reasons[name] = output.finish_reason

    def drain(self, limit=500):
        for _ in range(limit):
            if not self.engine.has_work:
                return self
            self.step()
        pytest.fail("the engine did not come to rest")


def assert_all_free(engine):
    ledger = engine.status().blocks
    assert ledger.free + ledger.cached == ledger.total


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
    assert_all_free(engine)
    assert not run.errors, "a request that gives tokens already is not queued any more"
    assert set(run.reasons.values()) == {FinishReason.EXHAUSTED}


def test_the_deadline_ends_who_never_ran_and_nobody_else(make_engine):
    clock = FakeClock()
    config = SchedulerConfig(
        max_num_seqs=2, admission_mark=1.0, default_output_tokens=1, admission_counts_budgets=False
    )
    engine = make_engine(config, clock, num_blocks=6, block_size=4)
    deadline_s = clock.now() + 1.0
    run = Run(engine)
    for i in range(3):
        prompt = [i + j for j in range(8)]
        engine.add(make_request(prompt, f"r{i}", max_tokens=13, arrival=float(i), deadline_s=deadline_s))
    while engine._scheduler.num_preemptions == 0:
        run.step()
    clock.advance(5.0)
    run.drain()
    assert_all_free(engine)
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
    assert_all_free(engine)


def test_a_commit_that_is_refused_leaves_nothing_behind(make_engine):
    """The grammar cannot be compiled (this engine has no tokenizer): found out when the request joins the batch."""
    engine = make_engine(block_size=4)
    request = make_request(range(10), n=2, grammar=GrammarSpec(GrammarKind.REGEX, "a+"))
    assert engine.reserve(request) is not None
    engine.scatter(KEY, 0, 9, 0, 1, memoryview(bytes(72)))
    with pytest.raises(BadRequest):
        engine.commit(KEY)
    engine.verify()
    assert_all_free(engine)
    assert engine._scheduler.num_free_seqs == engine._scheduler.most_seqs
    engine.add(make_request(range(10)))
    assert Run(engine).drain().tokens["r", 0] == expected(range(10))


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
    engine.scatter(KEY, 0, 9, 0, 1, source.gather("leg", 0, 9, 0, 1))
    engine.commit(KEY)
    run = Run(engine).drain()
    assert run.tokens == {("r", 1): expected(range(10))}
    assert_all_free(engine)
    other = make_request(range(20, 30), n=3)
    engine.reserve(other)
    for index in range(3):
        engine.abort(KEY, (index,))
    with pytest.raises(KeyError):
        engine.commit(KEY)
    assert_all_free(engine)
    assert engine._scheduler.num_free_seqs == engine._scheduler.most_seqs
    assert engine._scheduler.num_reserved_output_blocks == 0


def test_a_hand_off_of_more_choices_than_seats_is_not_refused_for_ever(make_engine):
    engine = make_engine(SchedulerConfig(max_num_seqs=2), block_size=4)
    source = make_engine(block_size=4)
    source.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(9))))
    source.step()
    source.grant("leg")
    while source.has_work:
        source.step()
    assert engine.reserve(make_request(range(10), n=5)) is not None
    assert engine.reserve(make_request([1, 2], "other")) is None, "both seats are taken"
    engine.abort(KEY, (4,))
    engine.scatter(KEY, 0, 9, 0, 1, source.gather("leg", 0, 9, 0, 1))
    engine.commit(KEY)
    assert Run(engine).drain().tokens == {("r", i): expected(range(10)) for i in range(4)}
    assert_all_free(engine)
    assert engine._scheduler.num_free_seqs == engine._scheduler.most_seqs == 2


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


def test_a_row_without_its_token_ends_its_request(lag):
    runner = SilentRunner(FakeConfig(lag=lag))
    runner.silent = expected([1, 2, 3])[3]
    engine = EngineCore(runner, SchedulerConfig())
    engine.add(make_request([1, 2, 3], "bad"))
    engine.add(make_request([7, 8], "good"))
    run = Run(engine).drain(60)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens["good", 0] == expected([7, 8])
    assert_all_free(engine)
