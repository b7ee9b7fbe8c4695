"""Grammars and the step loop: one step ahead, steps that fail, engines without a tokenizer."""

import re
from dataclasses import replace

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.engine_settings import scheduler_config

FAKE = FakeConfig(model_path=BASE_MODEL, vocab_size=4096, eos_token_ids=(0, 4), num_blocks=64, block_size=4)
PATTERNS = [r"[a-f]{9}-[0-9]{7}", r"(ab|cd){8}", r"x[0-9]+y"]


def request(place, **params):
    return EngineRequest(
        key=RequestKey(f"r{place}", 0),
        prompt_ids=tuple(range(5 + place, 17 + place)),
        choices=(ChoiceState(index=0), ChoiceState(index=1)),
        sampling=SamplingParams(grammar=GrammarSpec(GrammarKind.REGEX, PATTERNS[place]), max_tokens=25, **params),
        seed=1,
    )


def outputs(config=FAKE, **scheduler):
    engine = EngineCore(FakeRunner(config), scheduler_config(**scheduler))
    for place in range(3):
        engine.add(request(place))
    tokens, reasons = {}, {}
    while engine.has_work:
        result = engine.step()
        engine.verify()
        assert not result.errors
        for output in result.outputs:
            tokens.setdefault((output.key.request_id, output.index), []).extend(output.token_ids)
            reasons[output.key.request_id, output.index] = output.finish_reason
    return tokens, reasons


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_output_obeys_its_grammar_with_and_without_overlap(overlap, is_parallel):
    tokens, reasons = outputs(replace(FAKE, overlap=overlap), parallel_grammar_masks=is_parallel)
    assert tokens == outputs()[0]
    for (name, index), ids in tokens.items():
        reason, pattern = reasons[name, index], PATTERNS[int(name[1])]
        text = base_tokenizer().decode(ids)
        assert re.fullmatch(pattern, text) if reason is FinishReason.GRAMMAR else reason is FinishReason.LENGTH, text
    assert FinishReason.GRAMMAR in reasons.values()


class OnceBroken(FakeRunner):
    """Raises once, when a step with several rows is sampled."""

    is_broken = False

    def sample(self, handle, masks=None, specs=None):
        if handle.plan.step == 4 and len(handle.plan.rows) > 1 and not self.is_broken:
            self.is_broken = True
            raise RuntimeError("once")
        super().sample(handle, masks, specs)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_raised_changes_no_token(overlap):
    engine = EngineCore(OnceBroken(replace(FAKE, overlap=overlap)), SchedulerConfig())
    for place in range(3):
        engine.add(request(place))
    tokens = {}
    while engine.has_work:
        for output in engine.step().outputs:
            tokens.setdefault((output.key.request_id, output.index), []).extend(output.token_ids)
    assert engine.runner.is_broken
    assert tokens == outputs()[0]


def test_without_a_tokenizer_a_grammar_is_refused_and_nothing_else(make_engine):
    engine = make_engine()
    with pytest.raises(BadRequest) as caught:
        engine.add(request(0))
    assert caught.value.param == "grammar"
    assert not engine.has_work
    engine.add(replace(request(0), sampling=SamplingParams(max_tokens=2)))
    assert engine.step().num_rows + engine.step().num_rows >= 1
