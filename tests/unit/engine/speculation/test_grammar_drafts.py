"""Requests with a grammar run with drafts: what is forced is drafted, what is forbidden is cut, no token changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.core.requests.grammar import ANY_OBJECT, GrammarKind, GrammarSpec, choice_grammar, schema_grammar
from stratos.core.requests.records import EngineRequest
from stratos.engine.contract.results import DraftCount, StepResult
from stratos.engine.core import EngineCore
from stratos.engine.grammar.compiler import GrammarCompiler
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.drafting import GRAMMAR
from stratos.engine.speculation.ngram import NgramProposer
from stratos.engine.speculation.proposer import Proposer
from tests.support.fakes.proposers import BrokenProposer, KnowingProposer, proposers
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.core_driver import Outcomes, make_request, run
from tests.support.worlds.plan_driver import load_runner

VOCAB = 4096
WEATHER = {
    "type": "object",
    "properties": {"temperature": {"type": "integer"}, "sky": {"enum": ["sunny", "cloudy"]}},
    "required": ["temperature", "sky"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": schema_grammar(WEATHER, "schema"),
    "regex": GrammarSpec(GrammarKind.REGEX, r"[0-9]{3}-[a-f]{2,4}"),
    "choice": choice_grammar(["yes", 'no "quoted"\n', "größer 😀"], "choice"),
    "lark": GrammarSpec(GrammarKind.LARK, 'start: item ("," item)*\nitem: /[a-z]{1,5}/ | "(" start ")"'),
    "object": ANY_OBJECT,
}
ALL_DRAFTS = SchedulerConfig(speculation=SpeculationConfig(is_adaptive=False))


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    return load_runner(BASE_MODEL, kv_pool_bytes=8 << 20)


@pytest.fixture(scope="module")
def requests() -> list[EngineRequest]:
    """Greedy and seeded, with choices, penalties and log probabilities, in one batch with one that has no grammar."""
    prompt = base_tokenizer().encode_plain("def value(name):\n    return ")
    more: list[dict[str, Any]] = [{"temperature": 0.0}, {"n": 2, "presence_penalty": 0.5}, {"num_logprobs": 2}]
    made = [
        make_request(prompt, name, seed=i, grammar=grammar, max_tokens=24, **{"temperature": 1.1, **more[i % 3]})
        for i, (name, grammar) in enumerate(GRAMMARS.items())
    ]
    return [*made, make_request(prompt, "free", max_tokens=24)]


@pytest.fixture(scope="module")
def before(runner: TorchRunner, requests: list[EngineRequest]) -> Outcomes:
    """What comes out without drafts."""
    outcomes = run(EngineCore(runner, SchedulerConfig()), *requests)
    assert not outcomes.errors
    return outcomes


def streams_of(outcomes: Outcomes) -> dict[tuple[str, int], list[int]]:
    return {place: outcome.ids for place, outcome in outcomes.choices.items()}


def counts_of(engine: EngineCore, *requests: EngineRequest) -> list[DraftCount]:
    """Run requests; what became of their drafts."""
    counts: list[DraftCount] = []
    step = engine.step

    def counted() -> StepResult:
        result = step()
        counts.extend(result.drafts)
        return result

    engine.step = counted  # type: ignore[method-assign]
    run(engine, *requests)
    return counts


@pytest.mark.parametrize("kind", ["right", "wrong", "wrong after two", "random", "ngram"])
def test_a_batch_of_grammars_gives_the_same_streams(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes, kind: str
) -> None:
    known: dict[str, Proposer] = {**proposers(streams_of(before), VOCAB), "ngram": NgramProposer()}
    assert run(EngineCore(runner, ALL_DRAFTS, proposer=known[kind]), *requests) == before


def test_what_a_schema_forces_is_drafted_and_accepted(runner: TorchRunner, requests: list[EngineRequest]) -> None:
    """Names of fields come in runs of tokens: all of each run is drafted, with no proposer to help."""
    schema = requests[0]
    counts = counts_of(EngineCore(runner, ALL_DRAFTS, proposer=BrokenProposer([])), schema)
    forced = [count for count in counts if count.method == GRAMMAR]
    assert max(count.num_drafted for count in forced) >= 3
    assert sum(count.num_accepted for count in forced) == sum(count.num_drafted for count in forced) > 0


def test_drafts_that_the_grammar_forbids_are_cut_and_counted(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes
) -> None:
    """The right number of digits, then a fourth one: the pass never has it."""
    regex = requests[1]
    digit = base_tokenizer().encode_plain("1")[0]
    proposer = KnowingProposer({}, VOCAB)
    proposer.propose = lambda *_: [digit] * 8  # type: ignore[method-assign]
    counts = counts_of(EngineCore(runner, ALL_DRAFTS, proposer=proposer), regex)
    assert max(count.num_drafted for count in counts if count.method != GRAMMAR) <= 2
    assert sum(count.num_cut for count in counts) > 0
    assert (
        run(EngineCore(runner, ALL_DRAFTS, proposer=proposer), regex).choices["regex", 0]
        == (before.choices["regex", 0])
    )


def test_looking_ahead_leaves_the_state_alone() -> None:
    compiler = GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 4)
    matcher = compiler.matcher(GRAMMARS["regex"])
    digits = base_tokenizer().encode_plain("123")
    ids = [base_tokenizer().encode_plain(d)[0] for d in "123"]
    assert len(matcher.after(ids)) == 3 == matcher.num_allowed(ids), digits
    assert matcher.num_allowed([*ids, ids[0]]) == 3
    assert len(matcher.after([*ids, ids[0]])) == 3
    matcher.replay(ids)  # from the beginning
    assert matcher.num_allowed(base_tokenizer().encode_plain("-")) == 1


def test_a_slow_grammar_has_no_drafts(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratos.engine.grammar.matcher.GrammarMatcher.is_slow", True)
    proposer = proposers(streams_of(before), VOCAB)["right"]
    counts = counts_of(EngineCore(runner, ALL_DRAFTS, proposer=proposer), *requests)
    assert {count.key.request_id for count in counts} == {"free"}


def test_a_resumed_grammar_goes_on_with_drafts(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes
) -> None:
    schema = requests[0]
    ids = before.choices["schema", 0].ids
    resumed = replace(schema, choices=(replace(schema.choices[0], emitted_ids=tuple(ids[:5])),))
    outcomes = run(EngineCore(runner, ALL_DRAFTS, proposer=NgramProposer()), resumed)
    assert outcomes.choices["schema", 0].ids == ids[5:]
