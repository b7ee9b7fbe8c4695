"""Rows with drafted tokens over the fake runner: the same tokens in fewer steps, nothing of a rejected one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.requests.records import EngineRequest, FinishReason, RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.proposer import Proposer
from tests.support.fakes.audited_runner import AuditedRunner
from tests.support.fakes.proposers import BrokenProposer, KnowingProposer, proposers
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, expected, make_request

VOCAB = 4096
PROMPT = [3, 1, 4, 1, 5]
KINDS = ["right", "wrong", "wrong after two", "random"]


def speculating(proposer: Proposer, config: SchedulerConfig | None = None, **fake: Any) -> EngineCore:
    """An engine whose kept tables are compared with its own at every plan."""
    runner = AuditedRunner(FakeConfig(**{"block_size": 4, **fake}))
    config = replace(config or SchedulerConfig(), speculation=SpeculationConfig(is_adaptive=False))
    runner.engine = EngineCore(runner, config, proposer=proposer)
    return runner.engine


def plain(config: SchedulerConfig | None, requests: list[EngineRequest], **fake: Any) -> Run:
    """A run without drafts."""
    engine = EngineCore(FakeRunner(FakeConfig(**{"block_size": 4, **fake})), config or SchedulerConfig())
    for request in requests:
        engine.add(request)
    return drain(engine)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


REQUESTS = {
    "alone": [make_request(PROMPT, max_tokens=30)],
    "batch with forks": [make_request(range(i, i + 9), f"r{i}", n=2, max_tokens=17 + i) for i in range(4)],
    "penalties and min_tokens": [make_request([7, 7], "p", max_tokens=24, min_tokens=9, frequency_penalty=0.5)],
    "logprobs": [make_request(PROMPT, "l", max_tokens=12, num_logprobs=2, num_prompt_logprobs=1)],
}


@pytest.mark.parametrize("overlap", [False, True], ids=["", "late-runner"])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_stream_is_the_one_without_drafts(name, kind, overlap):
    requests = REQUESTS[name]
    before = plain(None, requests)
    engine = speculating(proposers(before.tokens, VOCAB)[kind], overlap=overlap)
    for request in requests:
        engine.add(request)
    run = drain(engine)
    assert (run.tokens, run.reasons, run.errors) == (before.tokens, before.reasons, {})
    assert [r.num_accepted <= r.num_drafted for r in run.results].count(False) == 0
    assert sum(r.num_drafted for r in run.results) > 0
    assert_at_rest(engine)
    assert engine.runner.differences == []  # type: ignore[attr-defined]


def test_right_drafts_save_steps_and_wrong_ones_cost_none():
    before = plain(None, REQUESTS["alone"])
    steps = {}
    for kind, proposer in proposers(before.tokens, VOCAB).items():
        engine = speculating(proposer)
        engine.add(REQUESTS["alone"][0])
        run = drain(engine)
        steps[kind] = len(run.results)
        if kind == "wrong":
            assert sum(r.num_accepted for r in run.results) == 0
        # rejected tokens are in no share of a step
        assert sum(r.shares.num_tokens for r in run.results) == len(PROMPT) + 30 - 1
    assert steps["wrong"] == len(before.results)
    assert steps["right"] == 1 + 4  # the prompt's, then nine, nine, nine and two tokens
    assert steps["wrong after two"] == 1 + 10


def test_an_end_inside_an_accepted_run_ends_it_there():
    stream = expected(PROMPT, 40)
    streams = {("r", 0): stream}
    for params, reason, num_tokens in (
        ({"max_tokens": 6}, FinishReason.LENGTH, 6),
        ({"max_tokens": 40, "stop_token_ids": (stream[4],)}, FinishReason.STOP, 5),
    ):
        engine = speculating(KnowingProposer(streams, VOCAB))
        engine.add(make_request(PROMPT, **params))
        run = drain(engine)
        assert (run.tokens["r", 0], run.reasons["r", 0]) == (stream[:num_tokens], reason)
        assert_at_rest(engine)


def test_the_context_ends_a_run():
    engine = speculating(KnowingProposer({("r", 0): expected(PROMPT, 40)}, VOCAB), max_model_len=16)
    engine.add(make_request(PROMPT, max_tokens=40))
    run = drain(engine)
    assert (run.tokens["r", 0], run.reasons["r", 0]) == (expected(PROMPT, 11), FinishReason.LENGTH)


def test_the_prefix_cache_gets_what_was_accepted_and_nothing_else(kind):
    stream = expected(PROMPT, 24)
    streams = {("r", 0): stream, ("again", 0): stream[16:]}
    engine = speculating(proposers(streams, VOCAB)[kind])
    engine.add(make_request(PROMPT, max_tokens=24))
    drain(engine)
    known = set(block_hashes(chain_root(engine.info.identity, "", b""), (*PROMPT, *stream[:-1]), 4))
    assert set(engine.inspect().cached_blocks) == known
    # what is cached has the right KV: a request that starts from it goes on alike
    engine.add(make_request([*PROMPT, *stream[:16]], "again", max_tokens=8))
    run = drain(engine)
    assert run.tokens["again", 0] == stream[16:]
    assert run.stats["again"].num_cached_tokens == 20


def test_a_crowded_pool_preempts_as_without_drafts(kind):
    """Drafts take no block that a stream of the batch will need, so no sequence is preempted for one."""
    config = SchedulerConfig(**CROWDED)
    requests = [make_request(range(i, i + 9), f"r{i}", max_tokens=30) for i in range(3)]
    before = plain(config, requests, num_blocks=20)
    engine = speculating(proposers(before.tokens, VOCAB)[kind], config, num_blocks=20)
    for request in requests:
        engine.add(request)
    run = drain(engine)
    assert run.tokens == before.tokens
    assert_at_rest(engine)
    assert engine.runner.differences == []  # type: ignore[attr-defined]


def test_a_step_with_a_prompt_or_a_waiting_request_has_no_drafts():
    stream = expected(PROMPT, 30)
    proposer = KnowingProposer({("r", 0): stream, ("late", 0): expected(range(600), 8)}, VOCAB)
    engine = speculating(proposer, SchedulerConfig(max_num_batched_tokens=32, step_time_budget_ms=0))
    engine.add(make_request(PROMPT, max_tokens=30))
    run = Run(engine)
    run.step()
    engine.add(make_request(range(600), "late"))
    asked = proposer.num_asked
    while not run.stats.get("late"):
        result = run.step()
        assert result.num_drafted == 0
        if ("r", 0) in run.reasons:
            break
    assert proposer.num_asked == asked
    run.drain()
    assert run.tokens["r", 0] == stream


@pytest.mark.parametrize("drafts", [None, [VOCAB], [-1, 2]])
def test_a_proposer_that_fails_leaves_the_request_alone(drafts):
    proposer = BrokenProposer(drafts)
    engine = speculating(proposer)
    engine.add(make_request(PROMPT, max_tokens=12))
    run = drain(engine)
    assert run.tokens["r", 0] == expected(PROMPT, 12)
    assert proposer.num_asked == 1


def test_a_step_that_fails_is_run_again_without_its_drafts(kind):
    before = plain(None, REQUESTS["alone"])
    for moment in ("before", "after"):
        engine = speculating(proposers(before.tokens, VOCAB)[kind])
        runner = engine.runner
        assert isinstance(runner, AuditedRunner)
        engine.add(REQUESTS["alone"][0])
        run = Run(engine)
        run.step()
        runner.fails_next = moment  # type: ignore[assignment]
        run.drain()
        assert (run.tokens, run.errors) == (before.tokens, {})
        assert_at_rest(engine)


def test_a_poisoned_draft_is_not_the_requests_fault():
    stream = expected(PROMPT, 20)
    poison = next(token for token in range(VOCAB) if token not in {*PROMPT, *stream})
    drafts = KnowingProposer({("r", 0): stream}, VOCAB)
    for place in range(3):
        right = drafts.propose

        def poisoned(sequence, state, max_tokens, right=right, place=place):
            return [poison if i == place else token for i, token in enumerate(right(sequence, state, max_tokens))]

        proposer = KnowingProposer({("r", 0): stream}, VOCAB)
        proposer.propose = poisoned  # type: ignore[method-assign]
        engine = speculating(proposer, poison_token=poison)
        engine.add(make_request(PROMPT, max_tokens=20))
        run = drain(engine)
        assert (run.tokens["r", 0], run.errors) == (stream, {})


def test_an_abort_gives_back_what_drafts_took():
    engine = speculating(KnowingProposer({("r", 0): expected(PROMPT, 60)}, VOCAB))
    engine.add(make_request(PROMPT, max_tokens=60))
    run = Run(engine)
    run.step()
    run.step()
    engine.abort(RequestKey("r", 0))
    assert_at_rest(engine)


def test_what_cannot_verify_is_refused_by_name():
    class Simple(FakeRunner):
        can_verify = False

    with pytest.raises(InvalidCheckpoint, match="one token per row"):
        EngineCore(Simple(FakeConfig()), SchedulerConfig(), proposer=BrokenProposer())
