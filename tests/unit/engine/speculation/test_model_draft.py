"""Drafts by a small model: the same streams, a KV group of its own that adds up, and refusals by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig
from stratos.engine.sizing.case import GIB, Room
from stratos.engine.sizing.fit import draft_config, draft_need, plan_of
from stratos.engine.sizing.plan import size
from stratos.engine.speculation.making import check_draft, make_proposer
from stratos.engine.speculation.model_draft import CATCH_UP, ModelProposer
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.core_driver import Outcomes, run
from tests.support.worlds.core_driver import make_request as make_model_request
from tests.support.worlds.engine_driver import Run, drain, expected, make_request
from tests.support.worlds.plan_driver import load_runner

ALL_DRAFTS = SchedulerConfig(speculation=SpeculationConfig(method="draft", is_adaptive=False))
OF_ITSELF = SchedulerConfig(max_num_seqs=8, speculation=SpeculationConfig(method="self", is_adaptive=False))
DRAFT_MODEL = BASE_MODEL.parent / "draft"
ROOM = Room(is_gpu=False, total_bytes=64 * GIB, free_bytes=64 * GIB)
PROMPT = [3, 1, 4, 1, 5]


def proposer_of(**fake: int) -> ModelProposer:
    return ModelProposer(FakeRunner(FakeConfig(**{"block_size": 4, **fake})), FakeClock())


def engine_of(proposer: ModelProposer, config: SchedulerConfig = ALL_DRAFTS) -> EngineCore:
    return EngineCore(FakeRunner(FakeConfig(block_size=4)), config, proposer=proposer)


def assert_at_rest(engine: EngineCore, proposer: ModelProposer) -> None:
    engine.add(make_request([1], "last", max_tokens=1))
    drain(engine)
    proposer.blocks.verify()
    assert proposer.blocks.num_free == proposer.blocks.num_blocks


def test_the_same_model_as_draft_is_always_right():
    proposer = proposer_of()
    engine = engine_of(proposer)
    for i in range(3):
        engine.add(make_request([*PROMPT, i], f"r{i}", max_tokens=30))
    result = drain(engine)
    for i in range(3):
        assert result.tokens[f"r{i}", 0] == expected([*PROMPT, i], 30)
    counts = [(r.num_drafted, r.num_accepted) for r in result.results if r.num_drafted]
    assert sum(drafted for drafted, _ in counts) == sum(accepted for _, accepted in counts) > 0
    assert_at_rest(engine, proposer)


@pytest.mark.parametrize("fake", [{"worker_weight": 2}, {"num_blocks": 4}, {"max_model_len": 12}, {"block_size": 3}])
def test_another_model_and_a_small_pool_change_no_token(fake):
    proposer = proposer_of(**fake)
    engine = engine_of(proposer)
    for i in range(3):
        engine.add(make_request([*PROMPT, i], f"r{i}", n=2, max_tokens=20))
    result = drain(engine)
    for i in range(3):
        assert result.tokens[f"r{i}", 1] == expected([*PROMPT, i], 20)
    assert_at_rest(engine, proposer)


def test_a_long_prompt_is_computed_in_parts_and_drafted_for_then():
    proposer, prompt = proposer_of(num_blocks=600), list(range(3 * CATCH_UP - 8))
    engine = EngineCore(FakeRunner(FakeConfig(block_size=4, num_blocks=600)), ALL_DRAFTS, proposer=proposer)
    engine.add(make_request(prompt, max_tokens=24))
    result = drain(engine)
    assert result.tokens["r", 0] == expected(prompt, 24)
    steps = [r.num_drafted for r in result.results if r.outputs]
    assert (steps[1], steps[2], steps[3] > 0) == (0, 0, True)


def test_an_abort_gives_the_blocks_back():
    proposer = proposer_of()
    engine = engine_of(proposer)
    engine.add(make_request(PROMPT, max_tokens=200))
    driven = Run(engine)
    for _ in range(4):
        driven.step()
    assert proposer.blocks.num_free < proposer.blocks.num_blocks
    engine.abort(RequestKey("r", 0))
    assert_at_rest(engine, proposer)


@pytest.mark.parametrize("place", ["launch", "collect"])
def test_a_draft_model_that_raises_is_given_up_for_its_sequences(place: str):
    runner = FakeRunner(FakeConfig(block_size=4))
    proposer = ModelProposer(runner, FakeClock())

    def fails(*_: object) -> None:
        raise RuntimeError("the test breaks the draft model")

    setattr(runner, place, fails)
    engine = engine_of(proposer)
    engine.add(make_request(PROMPT, max_tokens=12))
    result = drain(engine)
    assert result.tokens["r", 0] == expected(PROMPT, 12)
    assert [c.method for r in result.results for c in r.drafts] == ["failed"]
    proposer.blocks.verify()
    assert proposer.blocks.num_free == proposer.blocks.num_blocks


def test_one_slow_pass_says_nothing_about_the_others():
    clock, runner = FakeClock(), FakeRunner(FakeConfig(block_size=4))
    proposer, launch, times = ModelProposer(runner, clock), runner.launch, iter([0.0, 0.001, 0.5, *[0.001] * 100])

    def timed(plan):
        clock.advance(next(times))
        return launch(plan)

    runner.launch = timed  # type: ignore[method-assign]
    engine = engine_of(proposer)
    engine.add(make_request(PROMPT, max_tokens=30))
    drain(engine)
    assert proposer.token_s(1) == pytest.approx(0.001)


def test_a_draft_model_that_takes_too_long_is_given_up():
    proposer, clock = proposer_of(), FakeClock()
    look_ahead = proposer.look_ahead

    def slow(asks):
        clock.advance(60)
        look_ahead(asks)

    proposer.look_ahead = slow  # type: ignore[method-assign]
    engine = EngineCore(FakeRunner(FakeConfig(block_size=4)), ALL_DRAFTS, clock, proposer)
    engine.add(make_request(PROMPT, max_tokens=12))
    result = drain(engine)
    assert result.tokens["r", 0] == expected(PROMPT, 12)
    assert [c.method for r in result.results for c in r.drafts] == ["failed"]


def test_a_draft_model_that_took_too_long_rests_for_longer_each_time():
    """Each request of its own would pay for a look as long."""
    proposer, clock, looks = proposer_of(), FakeClock(), list[float]()
    begun_s = clock.now()

    def slow(asks):
        looks.append(clock.now() - begun_s)
        clock.advance(2)

    proposer.look_ahead = slow  # type: ignore[method-assign]
    config = replace(ALL_DRAFTS, speculation=replace(ALL_DRAFTS.speculation, is_adaptive=True))
    engine = EngineCore(FakeRunner(FakeConfig(block_size=4)), config, clock, proposer)
    for number in range(40):
        engine.add(make_request(PROMPT, f"r{number}", max_tokens=6))
        drain(engine)
        clock.advance(2)
    assert looks == pytest.approx([0, 12, 34, 76], abs=4)


@pytest.fixture(scope="module")
def target() -> TorchRunner:
    return load_runner(BASE_MODEL, kv_pool_bytes=8 << 20)


@pytest.fixture(scope="module")
def draft() -> TorchRunner:
    return load_runner(DRAFT_MODEL, kv_pool_bytes=8 << 20)


def outcomes_of(
    target: TorchRunner, draft: TorchRunner | None, temperature: float, config: SchedulerConfig = ALL_DRAFTS
) -> tuple[Outcomes, int]:
    proposer = None if draft is None else make_proposer(config, target, draft)
    engine, num_accepted = EngineCore(target, config, FakeClock(), proposer), 0  # a crowded machine fails no look
    step = engine.step

    def counted():
        nonlocal num_accepted
        result = step()
        num_accepted += result.num_accepted
        assert {count.method for count in result.drafts} <= {config.speculation.method}
        return result

    engine.step = counted  # type: ignore[method-assign]
    prompt = base_tokenizer().encode_plain("def get(self, name):\n    return self.values[")
    params = {"temperature": temperature, "num_logprobs": 1, "max_tokens": 32, "presence_penalty": 0.3}
    wanted = [make_model_request(prompt, f"r{i}", n=1 + i, seed=i, **params) for i in range(2)]
    return run(engine, *wanted), num_accepted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_shipped_pair_gives_the_same_streams_and_drafts_with_the_same_noise(target, draft, temperature):
    before, _ = outcomes_of(target, None, temperature)
    after, num_accepted = outcomes_of(target, draft, temperature)
    assert after == before
    assert num_accepted > 10


def test_what_is_no_draft_model_of_this_one_is_refused_by_name(target, draft, tmp_path: Path):
    check_draft(target, draft)
    with pytest.raises(InvalidCheckpoint, match="a draft model is smaller"):
        check_draft(draft, target)
    definition = json.loads((DRAFT_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = definition["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    shutil.copytree(DRAFT_MODEL, tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    other = load_runner(tmp_path / "other")
    with pytest.raises(InvalidCheckpoint, match="has another vocabulary"):
        check_draft(target, other)
    with pytest.raises(InvalidCheckpoint, match=r"set speculation\.model_path"):
        make_proposer(ALL_DRAFTS, target)
    (tmp_path / "other" / "model.safetensors").unlink()
    config = replace(ALL_DRAFTS, speculation=SpeculationConfig(method="draft", model_path=tmp_path / "other"))
    wanted = draft_config(RunnerConfig(model_path=BASE_MODEL, num_threads=1), config)
    assert wanted is not None
    with pytest.raises(InvalidCheckpoint):
        TorchRunner.load(wanted)


@pytest.fixture(scope="module")
def own_copy() -> TorchRunner:
    wanted = draft_config(RunnerConfig(model_path=BASE_MODEL, block_size=4, num_threads=1, dtype="float32"), OF_ITSELF)
    assert wanted is not None
    return TorchRunner.load(wanted)


def test_a_copy_of_the_weights_in_int4_is_what_was_planned(target, own_copy):
    config = RunnerConfig(model_path=BASE_MODEL, block_size=4, num_threads=1)
    without, plan = plan_of(config, SchedulerConfig(max_num_seqs=8), ROOM), plan_of(config, OF_ITSELF, ROOM)
    lines = {choice.name: choice.value for choice in plan.choices}
    assert lines.keys() - {choice.name for choice in without.choices} == {"draft model", "KV of drafts"}
    need = draft_need(config, OF_ITSELF, keeps_codes=True)
    assert (need.code_bytes > 0, own_copy.info.quantization) == (True, "int4-at-load")
    assert own_copy.info.step_weight_bytes == need.read_bytes("float32") < target.info.step_weight_bytes
    assert lines["draft model"] == size(need.weight_bytes("float32"))
    pool_bytes = 8 * 1024 * target.info.geometry.token_bytes
    assert lines["KV of drafts"] == size(pool_bytes)
    assert own_copy.info.num_blocks * 4 * target.info.geometry.token_bytes == pool_bytes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_drafts_for_itself_in_int4_and_its_streams_are_the_same(target, own_copy, temperature):
    before, _ = outcomes_of(target, None, temperature)
    after, num_accepted = outcomes_of(target, own_copy, temperature, OF_ITSELF)
    assert after == before
    assert num_accepted > 15, "few are wrong, and the streams end early"


def test_a_model_that_has_no_smaller_copy_is_refused_by_name(target, tmp_path: Path):
    for name in ("int4", "mxfp4", "nf4"):
        with pytest.raises(InvalidCheckpoint, match=f"the model's are {name}: a draft is smaller"):
            plan_of(RunnerConfig(model_path=BASE_MODEL, quantization=name), OF_ITSELF, ROOM)
    assert plan_of(RunnerConfig(model_path=BASE_MODEL, quantization="int8"), OF_ITSELF, ROOM)
    config = json.loads((BASE_MODEL / "config.json").read_text(encoding="utf-8"))
    stored = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": stored}), encoding="utf-8")
    shutil.copy(BASE_MODEL / "model.safetensors", tmp_path)
    with pytest.raises(InvalidCheckpoint, match="quantises float weights, and the checkpoint stores int4"):
        plan_of(RunnerConfig(model_path=tmp_path), OF_ITSELF, ROOM)
    with pytest.raises(InvalidCheckpoint, match="run on CPUs alone"):
        plan_of(RunnerConfig(model_path=BASE_MODEL), OF_ITSELF, replace(ROOM, is_gpu=True))
    with pytest.raises(InvalidCheckpoint, match="an engine that loads weights"):
        make_proposer(OF_ITSELF, target)
