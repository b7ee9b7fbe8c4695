"""Thousands of sequences that come at once: a step's time grows with their number, and not with its square."""

import sys

import pytest

from stratos.common.clock import FakeClock
from stratos.core.requests.records import ChoiceState
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler import scheduler
from stratos.engine.scheduler.batch_needs import BatchNeeds
from tests.support.worlds.engine_driver import make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.unit.engine.scheduler.test_steady import SHAPES, history

STANDARD = 1


def num_calls(work):
    """Calls of functions, C ones included, that ``work`` makes."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def burst_calls(num, *, emitted=0, waited_s=0.0, has_other_class=False):
    """Calls of the step that admits ``num`` short prompts at once, beside as many streams."""
    clock, size = FakeClock(), 2 * num + 1
    bounds = {"max_num_seqs": size, "max_num_waiting": size, "max_num_batched_tokens": 64 * size}
    config = scheduler_config(step_time_budget_ms=0.0, **bounds)
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=8 * size)), config, clock)
    for part in range(2):
        choices = (ChoiceState(index=0, emitted_ids=(7,) * emitted * part),)
        for index in range(num):
            name, prompt = f"{part} {index}", [part, *divmod(index, 50)]
            terms = {"priority_class": STANDARD, "arrival_s": clock.now(), "max_tokens": 60}
            engine.add(make_request(prompt, name, choices=choices, **terms))
        if part and has_other_class:
            engine.add(make_request([1, 2, 3], "first", priority_class=0, arrival_s=clock.now()))
        if not part:
            engine.step()
    clock.advance(waited_s)
    outputs = []
    calls = num_calls(lambda: outputs.extend(engine.step().outputs))
    assert len(outputs) == 2 * num + has_other_class
    return calls


@pytest.mark.parametrize("crowd", [
    {},
    {"emitted": 20},
    {"emitted": 20, "waited_s": 3.0},
    {"waited_s": 3.0, "has_other_class": True},
], ids=["new", "resumed", "aged", "below another class"])  # fmt: skip
def test_a_burst_of_twice_the_streams_takes_a_step_twice_the_time(crowd):
    assert burst_calls(400, **crowd) < 2.3 * burst_calls(200, **crowd)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_over_the_batch_are_those_of_adding_up_again(monkeypatch, shape, overlap):
    asked = []

    class CheckedNeeds(BatchNeeds):
        """Adds up again whatever is asked."""

        def __init__(self, *args):
            super().__init__(*args)
            self.args = args

        def growth_until_token(self, sequence):
            found = super().growth_until_token(sequence)
            assert found == BatchNeeds(*self.args).growth_until_token(sequence)
            asked.append(found)
            return found

    monkeypatch.setattr(scheduler, "BatchNeeds", CheckedNeeds)
    for seed in range(2):
        history(seed, shape, overlap=overlap)
    assert any(asked)
