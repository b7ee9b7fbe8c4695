"""Prompt lookup: what it drafts, and that a stream with it is the one without."""

from __future__ import annotations

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler.cost_model import StepLoad
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.draft_lengths import LEAST_TRIED, NUM_TRIED, DraftLengths
from stratos.engine.speculation.making import make_proposer
from stratos.engine.speculation.ngram import NgramProposer
from tests.support.fakes.proposers import proposers
from tests.support.worlds.engine_driver import drain, expected, make_request


def draft(tokens: list[int], max_tokens: int = 4) -> list[int]:
    return list(NgramProposer().propose(Sequence(seq_id=0, tokens=tokens, root=b""), DraftState(), max_tokens))


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [4, 5, 6, 7]),
        ([1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),
        ([8, 1, 2, 3, 5, 6, 0, 7, 2, 3, 5, 9, 8, 1, 2, 3, 5], [6, 0, 7, 2]),
        ([7, 7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([256, 1, 1, 1, 65536, 256, 256, 256], []),
    ],
)
def test_what_followed_before_is_drafted(tokens, drafts):
    assert draft(tokens) == drafts


def test_the_memory_follows_the_sequence():
    sequence, state, proposer = Sequence(seq_id=0, tokens=[1, 2, 3, 4], root=b""), DraftState(), NgramProposer()
    assert not proposer.propose(sequence, state, 2)
    for token in (1, 2, 3):
        sequence.tokens.append(token)
        drafts = proposer.propose(sequence, state, 2)
    assert list(drafts) == [4, 1]


def test_a_stream_with_drafts_of_its_own_tokens_is_the_one_without():
    prompt = [5, 6, 7, 8, 9] * 6
    config = SchedulerConfig(speculation=SpeculationConfig(method="ngram"))
    runner = FakeRunner(FakeConfig(vocab_size=7))
    engine = EngineCore(runner, config, proposer=make_proposer(config, runner))
    engine.add(make_request([t % 7 for t in prompt], max_tokens=200))
    run = drain(engine)
    assert run.tokens["r", 0] == expected([t % 7 for t in prompt], 200, vocab_size=7)
    assert sum(r.num_drafted for r in run.results) > 0


def test_by_default_it_drafts_where_drafts_can_be_verified():
    class Simple(FakeRunner):
        can_verify = False

    able, simple = FakeRunner(FakeConfig()), Simple(FakeConfig())
    off = SchedulerConfig(speculation=SpeculationConfig(method="off"))
    assert isinstance(make_proposer(SchedulerConfig(), able), NgramProposer)
    assert make_proposer(SchedulerConfig(), simple) is None
    assert make_proposer(off, able) is None
    with pytest.raises(InvalidCheckpoint, match="one token per row"):
        make_proposer(SchedulerConfig(speculation=SpeculationConfig(method="ngram")), simple)


def learned(chance: float, token_cost: float) -> tuple[DraftLengths, StepLoad]:
    """Lengths after steps in which a token cost so many seconds beside one second of the step."""
    lengths, load = DraftLengths(), StepLoad(1, 100)
    for i in range(NUM_TRIED + 20):
        lengths.choose(load, [(chance, 8)])
        num_drafted = i % 5
        lengths.observe(StepLoad(1 + num_drafted, 100), 1.0 + token_cost * (1 + num_drafted), num_drafted)
    return lengths, load


@pytest.mark.parametrize(
    ("chance", "token_cost", "least", "most"),
    [(0.95, 0.02, 8, 8), (0.6, 0.05, 2, 6), (0.05, 0.1, 0, 0), (0.3, 1.0, 0, 0), (0.9, 3.0, 0, 1)],
)
def test_drafts_are_as_long_as_they_pay(chance, token_cost, least, most):
    lengths, load = learned(chance, token_cost)
    assert least <= lengths.choose(load, [(chance, 8)])[0] <= most


@pytest.mark.parametrize(("edge", "is_paying"), [(0.0, True), (0.2, False)])
def test_few_drafts_do_not_pay_for_a_tile_of_rows_that_they_begin(edge, is_paying):
    """A step of 32 rows takes 60 ms, and one of 33 to 48 a fifth more; other batches had drafts, too."""
    lengths = DraftLengths()
    load, offered = StepLoad(32, 9000), [(0.5, 1)] * 4
    for i in range(200):
        lengths.choose(load, offered)
        streams, num_drafted = (32, 8)[i % 2], (i // 2) % 5
        rows = streams + num_drafted
        tiles = (rows > 32) * edge
        lengths.observe(StepLoad(rows, 300 * rows), 0.060 * (0.8 + rows / 160 + tiles), num_drafted)
    assert any(lengths.choose(load, offered)) == is_paying
    few, crowd = lengths.worth(StepLoad(12, 3600), 4, 1), lengths.worth(StepLoad(36, 10800), 4, 1)
    assert crowd.cost_s > few.cost_s + 0.9 * edge * 0.060 - 0.002


def test_a_try_adds_no_more_tokens_than_the_step_has_or_a_few():
    alone, crowd = (DraftLengths().choose(StepLoad(n, 100), [(0.9, 8)] * n) for n in (1, 64))
    assert (alone, sum(crowd)) == ([8], 64)
    assert sum(DraftLengths().choose(StepLoad(4, 100), [(0.9, 8)] * 4)) == LEAST_TRIED


def test_a_try_has_drafts_as_long_as_they_may_be_right_and_of_two_prompts_where_those_cost():
    assert DraftLengths().choose(StepLoad(3, 100), [(0.01, 8), (0.3, 8), (0.6, 8)]) == [1, 2, 5]
    assert DraftLengths().choose(StepLoad(3, 100), [(0.6, 8)] * 3, lambda num_rows: 0.001) == [5, 5, 0]


def test_a_proposer_that_is_always_wrong_is_known_after_forty_tokens():
    lengths, sequence = DraftLengths(), Sequence(seq_id=0, tokens=[1], root=b"")
    for number in range(40):
        state = DraftState(method="m", proposed=(5,), num_known=len(sequence.tokens))
        sequence.tokens.append(9)
        lengths.learn(sequence, state)
        assert lengths.chance(DraftState(method="m")) > 0.1 or number > 16
    assert lengths.chance(DraftState(method="m")) < 0.06


def test_drafts_that_are_not_run_still_show_whether_they_were_right():
    lengths, state = DraftLengths(), DraftState()
    sequence = Sequence(seq_id=0, tokens=[1], root=b"")
    for _ in range(30):
        lengths.learn(sequence, state)
        state.proposed, state.num_known = (5, 6), len(sequence.tokens)
        sequence.tokens.append(9)
    assert lengths.chance(state) < 0.05
    for _ in range(30):
        lengths.learn(sequence, state)
        state.proposed, state.num_known = (5, 6), len(sequence.tokens)
        sequence.tokens.append(5)
    assert lengths.chance(state) > 0.9


def test_what_does_not_pay_is_looked_at_less_and_less_often():
    stream = expected([3, 1, 4], 400)
    asked = {}
    for kind, proposer in proposers({("r", 0): stream}, 4096).items():
        engine = EngineCore(FakeRunner(FakeConfig()), SchedulerConfig(), proposer=proposer)
        engine.add(make_request([3, 1, 4], max_tokens=400))
        assert drain(engine).tokens["r", 0] == stream
        asked[kind] = proposer.num_asked
    assert asked["wrong"] < 2 * 400 / NgramProposer.max_gap
