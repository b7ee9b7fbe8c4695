"""Situations in which streams with drafts must be those without, bit for bit, and everything that is compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stratos.common.clock import SystemClock
from stratos.core.kv import KvRange
from stratos.core.requests.grammar import GrammarKind, GrammarSpec, calls_grammar, schema_grammar
from stratos.core.requests.records import ChoiceState, EngineRequest, PrefillJob, RequestKey
from stratos.core.requests.watermark import Watermark
from stratos.engine.contract.results import StepResult
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SpeculationConfig
from stratos.engine.speculation.making import make_proposer
from stratos.engine.speculation.proposer import Proposer
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.core_driver import Outcome, make_request
from tests.support.worlds.engine_driver import CROWDED
from tests.support.worlds.engine_settings import scheduler_config

SCHEMA = {
    "type": "object",
    "properties": {"temperature": {"type": "integer"}, "sky": {"enum": ["sunny", "cloudy"]}},
    "required": ["temperature", "sky"],
    "additionalProperties": False,
}
CODE = "def get(self, name):\n    return self.values[name]\n\n\ndef set(self, name, value):\n    self.values["
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "num_logprobs": 2},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "n": 2},
    "penalised": {"temperature": 0.8, "frequency_penalty": 0.7, "repetition_penalty": 1.2, "min_tokens": 9},
    "biased": {
        "temperature": 0.7,
        "logit_bias": {95: 4.0, 90: -3.0},
        "bad_sequences": ((5, 5), (7,)),
        "num_logprobs": 1,
    },
    "stopped": {"temperature": 0.0, "stop_token_ids": tuple(range(90, 2000, 17))},
    "marked": {"temperature": 0.8, "watermark": Watermark(key=b"k" * 32, delta=2.0, gamma=0.5)},
    "schema": {"temperature": 1.1, "grammar": schema_grammar(SCHEMA, "schema")},
    "words": {
        "temperature": 0.8,
        "grammar": GrammarSpec(GrammarKind.REGEX, "([a-z]{2,6} ){5}"),
        "presence_penalty": 0.5,
    },
    "tools": {
        "temperature": 0.9,
        "grammar": calls_grammar(
            'start: CALL args "}\\n</tool_call>"\n'
            'CALL: "<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": "\n'
            f"args: %json {json.dumps(SCHEMA)}",
            [SCHEMA],
            "tools",
        ),
    },
    "reasoning": {
        "temperature": 1.0,
        "grammar": GrammarSpec(
            GrammarKind.LARK,
            'start: THOUGHT "</think>\\n" ANSWER\nTHOUGHT: /[a-z ]{8,20}/\nANSWER: "the answer is " /[0-9]{2,4}/',
        ),
        "frequency_penalty": 0.3,
    },
    "adapted": {"temperature": 0.6, "max_tokens": 17},
    "adapted too": {"temperature": 0.0},
    "adapted as well": {"temperature": 0.9, "top_k": 30, "n": 2},
    "adapted at random": {"temperature": 0.0, "num_logprobs": 1},
}
NUM_TOKENS = 24


@dataclass
class Run:
    """Everything that drafts must not change, and how many there were."""

    choices: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    num_shared: int = 0
    """Tokens that steps computed for requests, as tenants are accounted for."""
    cached: frozenset[bytes] = frozenset()
    """Hashes of the blocks that the run left in the prefix cache."""
    num_drafted: int = 0
    num_accepted: int = 0

    def take(self, result: StepResult) -> None:
        """Add what a step gave."""
        for output in result.outputs:
            outcome = self.choices.setdefault((output.key.request_id, output.index), Outcome())
            outcome.ids += output.token_ids
            outcome.logprobs += output.logprobs
            outcome.reason = output.finish_reason or outcome.reason
        self.errors += [f"{key.request_id}: {error}" for key, error in result.errors.items()]
        self.num_shared += sum(result.shares.requests.values())
        self.num_drafted += result.num_drafted
        self.num_accepted += result.num_accepted


def differences(before: Run, after: Run) -> list[str]:
    """What drafts have changed; empty when nothing."""
    found = [f"stream {place}" for place, outcome in before.choices.items() if after.choices.get(place) != outcome]
    found += ["other streams"] * (after.choices.keys() != before.choices.keys())
    found += ["errors"] * (after.errors != before.errors)
    found += ["shares of tenants"] * (after.num_shared != before.num_shared)
    found += ["prefix cache"] * (after.cached != before.cached)
    return found


def requests(adapter_digests: Sequence[str]) -> list[EngineRequest]:
    """One request of each kind; the kinds with adapters have one each."""
    prompt, made, digests = base_tokenizer().encode_plain(CODE), [], iter(adapter_digests)
    for i, name in enumerate(KINDS):
        request = make_request(prompt[i % 5 :], name, seed=i, **{"max_tokens": NUM_TOKENS, **KINDS[name]})
        if name.startswith("adapted"):
            adapter = replace(request.terms.adapter, digest=next(digests))
            request = replace(request, terms=replace(request.terms, adapter=adapter))
        made.append(request)
    return made


@dataclass
class Engines:
    """Makes engines over one runner, with or without drafts.

    Args:
        runner: verifies; shared by all.
        draft: of the draft model.
        source: computes prompts that are handed off: pages of its own, as in a process of its own.
        method: of speculation; "off" for none.
        count: drafted tokens of a row at most; 0: as many as pay.
    """

    runner: TorchRunner
    draft: TorchRunner
    source: TorchRunner
    method: str = "off"
    count: int = 0
    proposer: Proposer | None = None
    """Instead of that of the method."""

    def make(self, *, is_plain: bool = False, is_source: bool = False, **config: Any) -> EngineCore:
        """An engine; ``is_plain``: one that does not speculate, ``is_source``: one whose KV others get."""
        runner = self.source if is_source else self.runner
        method = "off" if is_plain else self.method
        speculation = SpeculationConfig(
            method=method,  # type: ignore[arg-type]
            num_speculative_tokens=self.count or 8,
            is_adaptive=not self.count,
        )
        settings = scheduler_config(speculation=speculation, **config)
        proposer = None if is_plain else self.proposer or make_proposer(settings, runner, self.draft, SystemClock())
        return EngineCore(runner, settings, proposer=proposer)


def finish(engine: EngineCore, run: Run) -> Run:
    """Step to the end, recounting blocks; then what the prefix cache has."""
    while engine.has_work:
        run.take(engine.step())
        engine.verify()
    run.cached = frozenset(engine.inspect().cached_blocks)
    return run


def alone(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """Each request after the other, so that later ones find the prefixes of earlier ones."""
    engine, run = engines.make(), Run()
    for request in wanted:
        engine.add(request)
        finish(engine, run)
    return run


def batch(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """All at once."""
    engine = engines.make()
    for request in wanted:
        engine.add(request)
    return finish(engine, Run())


def preempted(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """All at once in a batch that is crowded: few sequences, few tokens in a step."""
    engine = engines.make(**CROWDED, max_num_batched_tokens=24, max_num_seqs=6)
    for request in wanted:
        engine.add(request)
    return finish(engine, Run())


def recovered(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """Cut off after some steps, as by a kill or a drain, and taken on by a worker without speculation."""
    return _moved(engines, wanted, is_plain=True)


def taken_on(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """Cut off on a worker with speculation, and taken on by another one with it."""
    return _moved(engines, wanted, is_plain=False)


def _moved(engines: Engines, wanted: list[EngineRequest], *, is_plain: bool) -> Run:
    run = Run()
    resumed = _cut_off(engines.make(), wanted, run)
    second = engines.make(is_plain=is_plain)
    for request in resumed:
        second.add(request)
    return _finish_moved(second, run)


def drained(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """Handed back by an engine that drafts; its successor gets the KV of prompt and output that it has cached."""
    first, run = engines.make(is_source=True), Run()
    resumed, second, num_moved = _cut_off(first, wanted, run), engines.make(), 0
    for request in resumed:
        token_ids = first.info.handed_ids(request)
        first.add_prefill(PrefillJob(leg="leg", token_ids=token_ids[:-1], compute=False, terms=request.terms))
        first.step()
        reserved = second.reserve(request)
        assert reserved is not None
        first.grant("leg")
        end = begin = reserved.num_skip_tokens
        while first.has_work:
            end = max([end, *(event.num_tokens for event in first.step().prefill_events)])
        if begin < end:
            part = KvRange(begin, end, 0, first.info.geometry.num_layers)
            second.scatter(request.key, part, first.gather("leg", part))
        first.release_prefill("leg")
        num_moved += end - begin
        if end < reserved.num_tokens:
            assert second.commit_part(request.key, end)
        else:
            second.commit(request.key)
    assert num_moved > 0
    return _finish_moved(second, run)


def _cut_off(first: EngineCore, wanted: list[EngineRequest], run: Run) -> list[EngineRequest]:
    """Run for some steps, and end; the requests that another engine has to go on with."""
    for request in wanted:
        first.add(request)
    while sum(len(outcome.ids) for outcome in run.choices.values()) < 5 * len(wanted):
        run.take(first.step())
    resumed = []
    for request in wanted:
        first.abort(request.key)
        states = tuple(_state(run, request, choice.index) for choice in request.choices)
        if not all(state.finished for state in states):
            resumed.append(replace(request, key=RequestKey(request.key.request_id, 1), choices=states))
    return resumed


def _finish_moved(second: EngineCore, run: Run) -> Run:
    """How far the first one came, and so what was computed twice, depends on the drafts."""
    finish(second, run)
    run.num_shared, run.cached = 0, frozenset()
    return run


def _state(run: Run, request: EngineRequest, index: int) -> ChoiceState:
    outcome = run.choices.get((request.key.request_id, index), Outcome())
    return ChoiceState(index=index, emitted_ids=tuple(outcome.ids), finished=outcome.reason is not None)


def handed_off(engines: Engines, wanted: list[EngineRequest]) -> Run:
    """Each prompt computed by another engine, whose KV comes before the first token."""
    source, target, run = engines.make(is_plain=True, is_source=True), engines.make(), Run()
    layers = source.info.geometry.num_layers
    for request in wanted:
        prompt = request.prompt_ids
        source.add_prefill(PrefillJob(leg="leg", token_ids=prompt[:-1], terms=request.terms))
        source.step()
        reserved = target.reserve(request)
        assert reserved is not None
        source.grant("leg")
        while source.has_work:
            source.step()
        whole = KvRange(reserved.num_skip_tokens, len(prompt) - 1, 0, layers)
        if whole.token_begin < whole.token_end:
            target.scatter(request.key, whole, source.gather("leg", whole))
        target.commit(request.key)
        source.release_prefill("leg")
        finish(target, run)
    return run


SITUATIONS: dict[str, Callable[[Engines, list[EngineRequest]], Run]] = {
    "alone": alone,
    "batch": batch,
    "preempted": preempted,
    "recovered": recovered,
    "taken on": taken_on,
    "handed off": handed_off,
    "drained": drained,
}
