"""What a draft model costs where it does not pay, by a clock that each pass of a model moves on."""

from __future__ import annotations

import pytest

from stratos.common.clock import FakeClock
from stratos.engine.contract.plan import StepPlan
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.draft_lengths import NUM_TRIED, DraftLengths
from stratos.engine.speculation.draft_purse import CREDIT_S, DraftPurse
from stratos.engine.speculation.model_draft import ModelProposer
from tests.support.fakes.proposers import KnowingProposer
from tests.support.worlds.engine_driver import drain, expected, make_request

STEP_S, DRAFT_S, DRAFT_PROMPT_TOKEN_S = 0.010, 0.0005, 0.001
PROMPT = list(range(100))


class TimedModels:
    """An engine whose model takes 10 ms a step, and a draft model that takes as long for 10 tokens of a prompt."""

    def __init__(self, **draft: int) -> None:
        self.clock, self.draft_s, self.num_prompt_tokens = FakeClock(), 0.0, 0
        self.draft_token_s = DRAFT_S
        target = FakeRunner(FakeConfig(block_size=4, num_blocks=600))
        cheap = FakeRunner(FakeConfig(**{"block_size": 4, "num_blocks": 600, **draft}))
        launch, launch_draft = target.launch, cheap.launch

        def timed(plan):
            self.clock.advance(STEP_S)
            return launch(plan)

        def timed_draft(plan):
            is_prompt = plan.num_tokens > 2 * len(plan.rows)
            took_s = plan.num_tokens * DRAFT_PROMPT_TOKEN_S if is_prompt else self.draft_token_s
            self.num_prompt_tokens += plan.num_tokens if is_prompt else 0
            self.draft_s += took_s
            self.clock.advance(took_s)
            return launch_draft(plan)

        target.launch, cheap.launch = timed, timed_draft  # type: ignore[method-assign]
        config = SchedulerConfig(speculation=SpeculationConfig(method="draft"))
        self.engine = EngineCore(target, config, self.clock, ModelProposer(cheap, self.clock))
        self.num_accepted = 0

    def answer(self, name: str, max_tokens: int) -> None:
        """Run one request alone; its tokens are the model's."""
        prompt = [*PROMPT, len(name)]
        self.engine.add(make_request(prompt, name, max_tokens=max_tokens))
        result = drain(self.engine)
        assert result.tokens[name, 0] == expected(prompt, max_tokens)
        self.num_accepted += sum(step.num_accepted for step in result.results)

    def learn(self) -> None:
        """Costs and chances are known afterwards."""
        self.answer("first", 40 * NUM_TRIED)
        assert self.draft_s > 0
        self.draft_s, self.num_prompt_tokens, self.num_accepted = 0.0, 0, 0


def test_answers_that_end_before_drafts_pay_for_their_prompts_compute_one_of_thirty_at_the_draft_model() -> None:
    models = TimedModels()
    models.learn()
    for number in range(30):
        models.answer(f"short {number}", 3)
    assert models.num_prompt_tokens <= len(PROMPT) + 2, "one of them is looked at, in a second"
    assert models.num_accepted == 0


def test_a_long_answer_computes_its_prompt_once_drafts_would_have_saved_as_much() -> None:
    models = TimedModels()
    models.learn()
    begin_s = models.clock.now()
    models.answer("long", 200)
    took_s = models.clock.now() - begin_s
    assert models.num_accepted > 100
    assert took_s < 0.6 * 200 * STEP_S, "drafts that are always right pay"


def test_looks_at_drafts_that_do_not_pay_take_half_a_hundredth_of_the_time() -> None:
    models = TimedModels(worker_weight=2)
    models.learn()
    for number in range(40):  # until it is known that they are wrong
        models.answer(f"learns {number}", 30)
    models.draft_s, begin_s = 0.0, models.clock.now()
    for number in range(100):
        models.answer(f"wrong {number}", 30)
    assert 0 < models.draft_s < 0.008 * (models.clock.now() - begin_s)


def test_the_first_answers_beside_a_draft_model_that_is_always_wrong_lose_little() -> None:
    models = TimedModels(worker_weight=2)
    begin_s = models.clock.now()
    for number in range(8):
        models.answer(f"first {number}", 128)
    took_s = models.clock.now() - begin_s
    assert models.draft_s < 0.04 * took_s


def test_of_eight_first_streams_two_are_tried_and_one_probed_at_the_draft_model() -> None:
    models = TimedModels(worker_weight=2)
    for number in range(8):
        models.engine.add(make_request([*PROMPT[:20], number], f"r{number}", max_tokens=64))
    drain(models.engine)
    assert 0 < models.num_prompt_tokens <= 3 * 24


def test_drafts_that_estimates_praise_wrongly_lose_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of a draft model takes as long as a step, and is said to take nothing."""
    monkeypatch.setattr(ModelProposer, "token_s", lambda *asked: 0.0)
    monkeypatch.setattr(ModelProposer, "owed_s", lambda *asked: 0.0)
    models = TimedModels(worker_weight=2)
    monkeypatch.setattr(DraftLengths, "chance", lambda *asked: 0.99)
    models.draft_token_s = STEP_S
    for number in range(20):
        models.answer(f"first {number}", 30)
    assert models.draft_s >= CREDIT_S, "they are tried"
    models.draft_s, begin_s = 0.0, models.clock.now()
    for number in range(120):
        models.answer(f"wrong {number}", 30)
    assert 0 < models.draft_s < 0.015 * (models.clock.now() - begin_s)


def test_a_purse_that_is_empty_lets_drafts_go_on_whose_prompts_are_paid_for() -> None:
    purse = DraftPurse()
    assert purse.may_begin
    purse.settle(CREDIT_S, 0.0)
    assert (purse.may_begin, purse.may_go_on) == (False, True)
    purse.settle(CREDIT_S, 0.0)
    assert not purse.may_go_on
    purse.pass_step(1.0)
    assert (purse.may_begin, purse.may_go_on) == (False, True)
    purse.settle(0.0, 100.0)
    purse.settle(CREDIT_S, 0.0)
    assert not purse.may_begin, "no more is put by than the credit"


def test_a_purse_of_short_steps_holds_less() -> None:
    purse = DraftPurse()
    for _ in range(100):
        purse.pass_step(0.001)
    purse.settle(0.07, 0.0)
    assert (purse.may_begin, purse.may_go_on) == (False, True)
    purse.settle(0.06, 0.0)
    assert not purse.may_go_on


@pytest.mark.parametrize(("budget_ms", "longest_s"), [(20, 0.020), (4, 0.016), (0, 0.040)])
def test_drafts_count_in_the_time_of_a_step(budget_ms: float, longest_s: float) -> None:
    """A step takes 4 ms and 1 ms a token: four streams alone take 8 ms, and 40 with eight right drafts each."""
    clock, runner = FakeClock(), FakeRunner(FakeConfig(block_size=4, num_blocks=600))
    launch = runner.launch

    def timed(plan: StepPlan) -> object:
        clock.advance(0.004 + 0.001 * plan.num_tokens)
        return launch(plan)

    runner.launch = timed  # type: ignore[method-assign]
    streams = {(f"r{i}", 0): expected([i, 5, 9], 200) for i in range(4)}
    drafts_all = SpeculationConfig(is_adaptive=False)
    config = SchedulerConfig(speculation=drafts_all, step_time_budget_ms=budget_ms)
    engine = EngineCore(runner, config, clock, KnowingProposer(streams, 4096))
    for i in range(4):
        engine.add(make_request([i, 5, 9], f"r{i}", max_tokens=200))
    run = drain(engine)
    assert run.tokens == streams
    took_s = [step.ended_s - step.began_s for step in run.results if step.num_drafted][8:]
    assert max(took_s) == pytest.approx(longest_s, abs=1.1e-3), "but for what the fit is off"
