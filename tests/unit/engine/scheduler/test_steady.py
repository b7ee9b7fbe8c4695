"""A step that is planned as the one before is the step that looking at everything gives: after any history."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.engine.contract.plan import StepPlan
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler.decision import StepDecision
from stratos.engine.scheduler.steady import SteadyBatch
from tests.support.fakes.proposers import GuessingProposer
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, make_request
from tests.support.worlds.engine_settings import scheduler_config

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 10},
    "sinks": {"window": 10, "num_sinks": 6},
    "host": {"num_host_blocks": 30},
}


class NotingRunner(FakeRunner):
    """Keeps the plans that it was given."""

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(config)
        self.plans: list[StepPlan] = []

    def launch(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        return super().launch(plan)


def history(seed: int, shape: str, *, overlap: bool, streams: Any = None, **switches: Any) -> tuple[Run, NotingRunner]:
    """What a random history gives: requests of all classes come and are aborted, some have little time."""
    draw, clock = random.Random(f"{seed} {shape} {overlap}"), FakeClock()
    blocks = draw.choice((14, 22, 200))
    runner = NotingRunner(FakeConfig(num_blocks=blocks, block_size=4, overlap=overlap, **SHAPES[shape]))
    config = scheduler_config(
        max_num_seqs=5, max_num_batched_tokens=16, swap_costs=False, max_passed_steps=3, **CROWDED, **switches
    )
    proposer = None if streams is None else GuessingProposer(streams, runner.info.vocab_size)
    engine = EngineCore(runner, config, clock, proposer)
    run, asked = Run(engine), {}
    for step in range(160):
        clock.advance(0.01)
        if step < 120 and draw.random() < 0.12:
            prompt = [draw.randrange(50) for _ in range(draw.randint(1, 20))]
            name, end_s = f"r{step}", clock.now() + draw.uniform(0.1, 2) if draw.random() < 0.2 else None
            terms = {"priority_class": draw.randrange(3), "end_s": end_s, "arrival_s": clock.now()}
            asked[name] = make_request(prompt, name, draw.randint(1, 2), max_tokens=draw.randint(1, 30), **terms)
            engine.add(asked[name])
        if asked and draw.random() < 0.03:
            engine.abort(asked.pop(draw.choice(sorted(asked))).key)
        run.step()
    run.drain()
    assert_at_rest(engine)
    return run, runner


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_the_plans_are_those_of_a_scheduler_that_looks_at_everything(seed: int, shape: str, overlap: bool) -> None:
    kept, kept_runner = history(seed, shape, overlap=overlap)
    looked, runner = history(seed, shape, overlap=overlap, steady_steps=False)
    assert kept_runner.plans == runner.plans
    assert (kept.tokens, kept.reasons, kept.errors.keys()) == (looked.tokens, looked.reasons, looked.errors.keys())


@pytest.mark.parametrize("seed", range(4))
def test_so_they_are_with_drafts(seed: int) -> None:
    streams = _all_tokens(seed)
    plans = [history(seed, "plain", overlap=False, streams=streams, steady_steps=on)[1].plans for on in (True, False)]
    assert plans[0] == plans[1]
    assert any(plan.num_drafted for plan in plans[0])


def _all_tokens(seed: int) -> Any:
    """Tokens that the history gives without drafts, or would give: what it aborted has none."""
    run, _ = history(seed, "plain", overlap=False)
    return defaultdict(list, run.tokens)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_most_steps_of_a_batch_are_followed(monkeypatch: pytest.MonkeyPatch, overlap: bool) -> None:
    looks = []
    original = SteadyBatch.note

    def note(self: SteadyBatch, running: Any, waiting: Any, decision: StepDecision) -> None:
        looks.append(len(decision.scheduled))
        original(self, running, waiting, decision)

    monkeypatch.setattr(SteadyBatch, "note", note)
    engine = EngineCore(FakeRunner(FakeConfig(block_size=4, overlap=overlap)), scheduler_config())
    for index in range(4):
        engine.add(make_request([index, 1, 2], f"r{index}", max_tokens=40))
    assert len(drain(engine).results) >= 40
    assert len(looks) < 8, "it looks when streams begin and end"


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_a_stream_whose_time_is_over_ends(overlap: bool) -> None:
    clock = FakeClock()
    engine = EngineCore(FakeRunner(FakeConfig(overlap=overlap)), scheduler_config(), clock)
    engine.add(make_request([1, 2], "short", max_tokens=50, end_s=clock.now() + 1.0))
    engine.add(make_request([1, 2], "long", max_tokens=50))
    run = Run(engine)
    for _ in range(5):
        run.step()
    clock.advance(1.0)
    run.drain()
    assert list(run.errors) == ["short"]
    assert len(run.tokens["long", 0]) == 50
