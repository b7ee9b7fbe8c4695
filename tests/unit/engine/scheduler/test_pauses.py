"""Streams of the lowest class leave steps to prompts above it, for a bounded number of steps, and no token changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.requests.limits import BATCH_CLASS
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.worlds.engine_driver import expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

TOP = 0


def prompt_of(size, salt=0):
    return [(index * 7 + salt) % 4000 for index in range(size)]


def engine_of(*, overlap=False, num_blocks=256, **values):
    defaults = {"max_num_batched_tokens": 32, "prefix_cache": False, "step_time_budget_ms": 0.0, "max_passed_steps": 4}
    runner = FakeRunner(FakeConfig(num_blocks=num_blocks, block_size=4, max_model_len=4000, overlap=overlap))
    return EngineCore(runner, scheduler_config(**{**defaults, **values}), FakeClock())


def names_of(result):
    return {output.key.request_id for output in result.outputs}


def with_batch(engine, num=4, max_tokens=60):
    """Streams of the lowest class that have begun."""
    for number in range(num):
        fields = {"max_tokens": max_tokens, "priority_class": BATCH_CLASS}
        engine.add(make_request(prompt_of(5, number), f"batch{number}", **fields))
    engine.step()
    assert len(names_of(engine.step()) - {"standard"}) == num
    return engine


def test_a_prompt_above_has_its_steps_for_itself():
    engine = with_batch(engine_of())
    engine.add(make_request(prompt_of(96), "top", max_tokens=3, priority_class=TOP))
    assert [names_of(engine.step()) for _ in range(3)] == [set(), set(), {"top"}]
    assert len(names_of(engine.step())) == 5, "it decodes: all run again"


def test_without_the_switch_all_run_in_one_step():
    engine = with_batch(engine_of(batch_pauses=False))
    engine.add(make_request(prompt_of(96), "top", max_tokens=3, priority_class=TOP))
    assert len(names_of(engine.step())) == 4


@pytest.mark.parametrize("above", [TOP, BATCH_CLASS - 1])
def test_prompts_that_never_end_pause_no_row_for_longer_than_its_bound(above):
    engine = with_batch(engine_of(num_blocks=400))
    engine.add(make_request(prompt_of(900), "top", max_tokens=2, priority_class=above))
    steps = [names_of(engine.step()) for _ in range(20)]
    assert [len(names) >= 4 for names in steps] == [False, False, False, False, True] * 4


def test_rows_of_the_class_above_are_never_paused():
    engine = engine_of()
    engine.add(make_request(prompt_of(5), "standard", max_tokens=60, priority_class=BATCH_CLASS - 1))
    with_batch(engine)
    engine.add(make_request(prompt_of(96), "top", max_tokens=3, priority_class=TOP))
    assert [names_of(engine.step()) for _ in range(2)] == [{"standard"}] * 2


def test_a_prompt_that_finds_no_room_pauses_none():
    engine = with_batch(engine_of(num_blocks=24), num=4, max_tokens=12)
    engine.add(make_request(prompt_of(60), "top", max_tokens=2, priority_class=TOP))
    assert len(names_of(engine.step())) == 4


def test_a_prompt_without_a_batch_slot_pauses_none():
    engine = with_batch(engine_of(max_num_seqs=4), num=4)
    engine.add(make_request(prompt_of(8), "top", max_tokens=2, priority_class=TOP))
    assert len(names_of(engine.step())) == 4


@given(seed=st.integers(0, 10**6), overlap=st.booleans(), num_blocks=st.sampled_from([40, 200]))
def test_every_token_is_that_of_the_request_alone(seed, overlap, num_blocks):
    rng, engine, tokens, wanted = random.Random(seed), engine_of(overlap=overlap, num_blocks=num_blocks), {}, {}
    for step in range(600):
        if step < 40 and rng.random() < 0.5:
            prompt, most = prompt_of(rng.randrange(1, 60), step), rng.randrange(1, 20)
            request = make_request(prompt, f"r{step}", max_tokens=most, priority_class=rng.choice([0, 2, 3, 3]))
            engine.add(request)
            tokens[f"r{step}"], wanted[f"r{step}"] = [], expected(prompt, most)
        result = engine.step()
        engine.verify()
        for output in result.outputs:
            tokens[output.key.request_id] += output.token_ids
        if step > 40 and not engine.inspect().sequences:
            break
    assert tokens == wanted


def test_prompts_of_the_lowest_class_are_cut_while_others_come():
    """The fake clock stands still: steps take no time, and no more than twice the largest step seen is trusted."""
    sizes = {}
    for limit_ms in (0.0, 25.0):
        engine = engine_of(max_num_batched_tokens=512, num_blocks=900, batch_step_ms=limit_ms)
        engine.add(make_request(prompt_of(3), "top", max_tokens=50, priority_class=TOP))
        engine.step()
        engine.add(make_request(prompt_of(2000), "batch", max_tokens=2, priority_class=BATCH_CLASS))
        engine.step()
        sizes[limit_ms] = max(sequence.num_computed for sequence in engine.inspect().sequences)
    assert sizes[0.0] > 500
    assert sizes[25.0] < 70
