"""The cost model finds known costs, and chunks sized by it keep a step within its time."""

import random

import pytest

from stratos.common.clock import FakeClock
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.scheduler.budget import STRETCH
from stratos.engine.scheduler.cost_model import QUERY_TILE, StepCostModel, StepLoad
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

STEP_S, TOKEN_S, KV_S = 2e-3, 40e-6, 0.15e-6


def cost(load, factor=1.0):
    return factor * (STEP_S + TOKEN_S * load.tokens + KV_S * load.kv_tokens)


def loads(rng, count):
    """Decode batches, every fourth with a prompt chunk."""
    for index in range(count):
        load = StepLoad()
        for _ in range(rng.randrange(1, 30)):
            load = load.plus(1, rng.randrange(3000))
        yield load.plus(rng.randrange(16, 400), rng.randrange(2000)) if index % 4 == 0 else load


def feed(model, rng, count, factor=1.0, noise=0.03, stall_s=0.0):
    for index, load in enumerate(loads(rng, count)):
        seconds = cost(load, factor) * rng.uniform(1 - noise, 1 + noise)
        model.observe(load, seconds + (stall_s if index % 15 == 14 else 0.0))


def worst_error(model, factor=1.0):
    return max(abs(model.predict(load) / cost(load, factor) - 1) for load in loads(random.Random(99), 60))


def test_a_tile_of_queries_reads_its_context_once():
    assert StepLoad().plus(1, 99) == StepLoad(1, 100)
    assert StepLoad().plus(QUERY_TILE + 1, 83) == StepLoad(QUERY_TILE + 1, 200)


def test_it_converges_on_the_cost_of_each_part():
    model = StepCostModel()
    feed(model, random.Random(1), 400, noise=0.0)
    assert model.coefficients == pytest.approx((STEP_S, TOKEN_S, KV_S), rel=0.05)
    assert worst_error(model) < 0.01


def test_it_tracks_a_change_of_cost():
    model, rng = StepCostModel(), random.Random(2)
    feed(model, rng, 300)
    assert worst_error(model) < 0.1
    feed(model, rng, 250, factor=2.5)
    assert worst_error(model, 2.5) < 0.15
    feed(model, rng, 250)
    assert worst_error(model) < 0.15


def test_noise_does_not_make_it_promise_too_little():
    model, rng = StepCostModel(), random.Random(8)
    for load in loads(rng, 1500):
        model.observe(load, cost(load) * rng.choice([0.6, 1.0, 1.4]))
    ratios = [model.predict(load) / cost(load) for load in loads(random.Random(99), 60)]
    assert 0.93 < sum(ratios) / len(ratios) < 1.1


@pytest.mark.parametrize(("factor", "num_steps"), [(2.0, 20), (4.0, 50), (0.5, 20)])
def test_another_number_of_threads_is_taken_in_at_once(factor, num_steps):
    model, rng = StepCostModel(), random.Random(5)
    feed(model, rng, 1000)
    feed(model, rng, num_steps, factor)
    errors = sorted(abs(model.predict(load) / cost(load, factor) - 1) for load in loads(random.Random(99), 60))
    assert errors[53] < 0.2


@pytest.mark.parametrize("stall_s", [0.01, 0.03, 0.5])
def test_descheduled_steps_hardly_move_it(stall_s):
    model = StepCostModel()
    feed(model, random.Random(0), 330, stall_s=stall_s)
    assert worst_error(model) < 0.016


def test_decodes_alone_do_not_wash_out_what_a_prompt_token_costs():
    model, rng = StepCostModel(), random.Random(4)
    feed(model, rng, 300, noise=0.0)
    for step in range(3000):
        load = StepLoad(8, 8 * (1000 + step % 7))
        model.observe(load, cost(load))
    load = StepLoad().plus(256, 512)
    assert model.predict(load) == pytest.approx(cost(load), rel=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_coefficients_are_never_negative(seed):
    model, rng = StepCostModel(), random.Random(seed)
    for load in loads(rng, 300):
        model.observe(load, rng.expovariate(100))
        assert min(model.coefficients) >= 0


def test_what_is_no_duration_is_ignored():
    model = StepCostModel()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        model.observe(StepLoad(1, 1), seconds)
    model.observe(StepLoad(), 1.0)
    assert model.num_steps == 0
    assert model.predict(StepLoad(5, 5)) == 0


class TimedRunner(FakeRunner):
    """Takes the time that the costs say."""

    def __init__(self, config, clock, slow_from=10**9):
        super().__init__(config)
        self.clock, self.durations, self.slow_from = clock, [], slow_from

    def collect(self, handle):
        load = StepLoad()
        for row in handle.plan.rows:
            load = load.plus(len(row.token_ids), row.start)
        seconds = cost(load, 2.0 if len(self.durations) >= self.slow_from else 1.0)
        self.clock.advance(seconds)
        sizes = [len(row.token_ids) for row in handle.plan.rows]
        self.durations.append((load, seconds, max(sizes) > 1, sizes.count(1)))
        return super().collect(handle)


def sized_request(name, prompt, max_tokens):
    return make_request(((index * 7 + prompt) % 4000 for index in range(prompt)), name, max_tokens=max_tokens)


def run_mix(budget_ms, overlap, slow_from=10**9):
    """Streams that decode while long prompts come; returns step durations and tokens by request."""
    clock = FakeClock()
    runner = TimedRunner(FakeConfig(num_blocks=4096, max_model_len=8192, overlap=overlap), clock, slow_from)
    config = scheduler_config(max_num_batched_tokens=2048, step_time_budget_ms=budget_ms, prefix_cache=False)
    engine = EngineCore(runner, config, clock)
    tokens = {}
    for index in range(8):
        engine.add(sized_request(f"stream{index}", 40 + index, 480))
    steps = 0
    while engine.has_work:
        steps += 1
        if steps % 60 == 0 and steps < 360:
            engine.add(sized_request(f"prompt{steps}", 2500 + steps, 2))
        for output in engine.step().outputs:
            tokens.setdefault(output.key.request_id, []).extend(output.token_ids)
    return runner.durations, tokens


def test_chunks_keep_steps_within_their_time_and_the_switch_turns_it_off(overlap):
    durations, tokens = run_mix(12.0, overlap)
    slowest = max(seconds for _, seconds, _, streams in durations if streams)
    assert slowest <= 12.0e-3 * 1.15
    with_prompt = [seconds for _, seconds, has_prompt, streams in durations[200:] if has_prompt and streams]
    assert sum(with_prompt) / len(with_prompt) > 0.8 * 12.0e-3, "the time there is gets used"
    without, same = run_mix(0.0, overlap)
    assert max(seconds for _, seconds, _, _ in without) > 5 * slowest
    assert tokens == same
    prompt = sized_request("x", 2560, 2).prompt_ids
    assert tokens["prompt60"] == expected(prompt, 2)


def test_a_machine_that_becomes_twice_as_slow_is_over_the_time_for_a_few_steps_only(overlap):
    durations, _ = run_mix(20.0, overlap, slow_from=242)
    late = [seconds for _, seconds, _, streams in durations[242:] if streams and seconds > 20.0e-3 * 1.15]
    assert max(seconds for _, seconds, _, streams in durations[:242] if streams) <= 20.0e-3 * 1.15
    assert 0 < len(late) <= 12


def test_prompts_may_double_a_step_that_streams_alone_make_too_long(overlap):
    durations, tokens = run_mix(0.5, overlap)
    assert len(tokens) == 13
    alone = max(seconds for _, seconds, has_prompt, _ in durations if not has_prompt)
    mixed = [seconds for _, seconds, has_prompt, streams in durations[200:] if has_prompt and streams]
    assert max(mixed) <= STRETCH * alone * 1.15
    assert sum(mixed) / len(mixed) > 0.7 * STRETCH * alone, "a slow machine's prompts go on"


def test_a_prompt_that_delays_no_stream_takes_the_whole_token_budget(overlap):
    clock = FakeClock()
    runner = TimedRunner(FakeConfig(num_blocks=4096, max_model_len=8192, overlap=overlap), clock)
    engine = EngineCore(runner, SchedulerConfig(max_num_batched_tokens=2048, step_time_budget_ms=1.0), clock)
    engine.add(sized_request("alone", 4000, 1))
    while engine.has_work:
        engine.step()
    assert [load.tokens for load, _, _, _ in runner.durations] == [2048, 4000 - 2048]
