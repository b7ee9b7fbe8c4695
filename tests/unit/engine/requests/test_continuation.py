"""A generation that ran out of KV goes on elsewhere from its tokens, with those that it would have had anyway."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import ContextLengthExceeded
from stratos.core.requests.continuation import left_open
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from tests.support.paths import BASE_MODEL
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import make_core, make_request, run

PROMPT = [(i * 29 + 3) % 97 for i in range(22)]
MAX_TOKENS = 70
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "top_k": 40},
    "penalised": {"temperature": 0.8, "frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
    "min tokens": {"temperature": 1.0, "stop_token_ids": tuple(range(0, 97, 3)), "min_tokens": 66},
    "biased": {"temperature": 0.7, "logit_bias": {5: 4.0, 9: -3.0}, "min_p": 0.02, "num_logprobs": 2},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_llama(folder)
    return folder


def core_of(path: Path, num_blocks: int, **config: Any) -> EngineCore:
    probe = make_core(path)
    block_bytes = probe.info.geometry.token_bytes * probe.info.geometry.block_size
    core = make_core(path, kv_pool_bytes=num_blocks * block_bytes, default_output_tokens=1, **config)
    assert core.info.num_blocks == num_blocks
    return core


def going_on(
    request: EngineRequest, emitted: Mapping[int, Sequence[int]], exhausted: Collection[int], attempt: int = 1
) -> EngineRequest:
    """The request that goes on from an attempt, with what a gateway keeps of it."""
    choices = tuple(
        left_open(c.index, (*c.emitted_ids, *emitted.get(c.index, ())), is_open=c.index in exhausted)
        for c in request.choices
    )
    return replace(request, key=RequestKey(request.key.request_id, attempt), choices=choices)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("overlap", [False, True])
def test_resumed_tokens_equal_the_uninterrupted_run(path: Path, name: str, overlap: bool) -> None:
    request = make_request(PROMPT, name, n=2, max_tokens=MAX_TOKENS, ignore_eos=True, **PARAMS[name])
    small, large = core_of(path, 16, overlap=overlap), core_of(path, 160, overlap=overlap)
    whole, first = run(large, request), run(small, request)
    exhausted = {index for (_, index), outcome in first.choices.items() if outcome.reason is FinishReason.EXHAUSTED}
    assert exhausted, "the pool of 64 tokens holds no choice to its end"
    emitted = {index: outcome.ids for (_, index), outcome in first.choices.items()}
    rest = run(large, going_on(request, emitted, exhausted))
    for (_, index), outcome in whole.choices.items():
        both = first.choices[name, index], rest.choices.get((name, index))
        assert outcome.ids == both[0].ids + (both[1].ids if both[1] else [])
        assert outcome.logprobs == both[0].logprobs + (both[1].logprobs if both[1] else [])
        assert outcome.reason is (both[1] or both[0]).reason


def test_the_pool_that_was_too_small_refuses_the_continuation(path: Path) -> None:
    request = make_request(PROMPT, max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0)
    small = core_of(path, 16)
    first = run(small, request).choices["r", 0]
    with pytest.raises(ContextLengthExceeded):
        small.add(going_on(request, {0: first.ids}, {0}))


PATTERN = r"[a-f]{30}-[0-9]{20}"


def grammar_engine(num_blocks: int) -> EngineCore:
    fake = FakeConfig(model_path=BASE_MODEL, vocab_size=4096, eos_token_ids=(0, 4), num_blocks=num_blocks, block_size=4)
    return EngineCore(FakeRunner(fake), SchedulerConfig(default_output_tokens=1))


def test_a_grammar_is_replayed_over_several_continuations() -> None:
    grammar = GrammarSpec(GrammarKind.REGEX, PATTERN)
    request = EngineRequest(
        key=RequestKey("r", 0),
        prompt_ids=tuple(range(5, 17)),
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(grammar=grammar, max_tokens=60, frequency_penalty=0.5),
        seed=1,
    )
    whole = run(grammar_engine(40), request).choices["r", 0]
    assert whole.reason is FinishReason.GRAMMAR
    ids: list[int] = []
    for attempt, num_blocks in enumerate((5, 8, 40)):
        engine = grammar_engine(num_blocks)
        outcome = run(engine, request).choices["r", 0]
        ids += outcome.ids
        if outcome.reason is not FinishReason.EXHAUSTED:
            break
        request = going_on(request, {0: outcome.ids}, {0}, attempt + 1)
    assert attempt == 2
    assert (ids, outcome.reason) == (whole.ids, whole.reason)
