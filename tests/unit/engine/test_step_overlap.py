"""One step ahead of the host: the same tokens, no memory given away too early, no row more than needed."""

import itertools
import random

import pytest

from stratos.common.errors import Internal
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob, RequestKey
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config


def overlapping(config=None, **fake):
    return EngineCore(FakeRunner(FakeConfig(overlap=True, **fake)), config or SchedulerConfig())


def drain_to_rest(engine):
    run = drain(engine)
    assert_at_rest(engine)
    return run


def random_load(seed):
    draw = random.Random(seed)
    for i in range(14):
        prompt = [draw.randrange(90) for _ in range(draw.randrange(1, 30))]
        params = {"max_tokens": draw.randrange(1, 20), "min_tokens": draw.randrange(0, 3)}
        if draw.random() < 0.4:
            params |= {"presence_penalty": 0.5}
        if draw.random() < 0.5:
            params |= {"stop_token_ids": tuple(draw.sample(range(97), 12))}
        yield make_request(prompt, f"r{i}", n=draw.randrange(1, 4), arrival_s=float(i), **params)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_blocks", [27, 400])
def test_outputs_are_equal_whatever_the_overlap_of_engine_and_runner(seed, num_blocks):
    outcomes = []
    for config_overlap, runner_overlap in itertools.product((False, True), repeat=2):
        config = scheduler_config(max_num_batched_tokens=33, max_num_seqs=9, overlap=config_overlap)
        fake = FakeConfig(vocab_size=97, num_blocks=num_blocks, block_size=4, overlap=runner_overlap)
        engine = EngineCore(FakeRunner(fake), config)
        for request in random_load(seed):
            engine.add(request)
        run = drain_to_rest(engine)
        assert not run.errors
        outcomes.append((run.tokens, run.reasons))
    assert outcomes[0] == outcomes[1] == outcomes[2] == outcomes[3]


def test_a_length_is_known_in_advance_and_costs_no_row():
    for max_tokens in (1, 2, 7):
        engine = overlapping()
        engine.add(make_request([1, 2, 3], max_tokens=max_tokens))
        run = drain_to_rest(engine)
        assert run.tokens["r", 0] == expected([1, 2, 3], max_tokens)
        assert sum(result.num_rows for result in run.results) == max_tokens


def test_a_stop_token_costs_one_row_whose_blocks_are_fenced_until_it_is_collected():
    right = expected([1, 2, 3], 9)
    engine = overlapping(block_size=4)
    engine.add(make_request([1, 2, 3], stop_token_ids=(right[4],), max_tokens=20))
    num_rows, fenced = 0, []
    while engine.has_work:
        result = engine.step()
        engine.verify()
        num_rows += result.num_rows
        fenced.append(engine.status().blocks.fenced)
        assert engine.status().is_computing == bool(engine.has_work)
    assert num_rows == 6
    assert fenced[-2:] == [2, 0], "8 tokens were in two blocks"
    assert set(fenced[:-2]) == {0}


def test_penalties_see_the_newest_token():
    engine = overlapping(vocab_size=13)
    engine.add(make_request([1, 2], max_tokens=13, presence_penalty=1.0))
    tokens = drain_to_rest(engine).tokens
    assert sorted(tokens["r", 0]) == list(range(13)), "no token twice"


def test_memory_of_an_aborted_request_is_not_given_away_under_its_launched_step():
    config = SchedulerConfig(max_num_seqs=4, **CROWDED)
    engine = overlapping(config, num_blocks=5, block_size=4)
    engine.add(make_request(range(13), "a"))
    engine.step()
    engine.abort(RequestKey("a", 0))
    assert engine.status().blocks.fenced == 4
    other = make_request(range(20, 33), "b")
    assert engine.reserve(other) is None
    engine.step()
    assert engine.status().blocks.fenced == 0
    assert engine.reserve(other) is not None
    engine.scatter(other.key, KvRange(0, 12, 0, 1), memoryview(bytes(8 * 12)))
    engine.abort(other.key)
    drain_to_rest(engine)


def test_a_copy_that_is_launched_keeps_its_destination():
    engine = overlapping(SchedulerConfig(max_num_batched_tokens=3), block_size=4)
    engine.add(make_request(range(6), n=3))
    while not (copies := engine.inspect().launched_copies):
        engine.step()
    assert len(copies) == 2
    engine.abort(RequestKey("r", 0))
    assert engine.status().blocks.fenced >= len(copies) + 1
    engine.verify()
    drain_to_rest(engine)


def test_a_victim_in_flight_is_held_back_and_nothing_cascades():
    counts, config = [], SchedulerConfig(**CROWDED)
    for overlap in (False, True):
        engine = EngineCore(FakeRunner(FakeConfig(overlap=overlap, num_blocks=12, block_size=4)), config)
        prompts = {f"r{i}": [i + j for j in range(9)] for i in range(4)}
        for arrival, (name, prompt) in enumerate(prompts.items()):
            engine.add(make_request(prompt, name, max_tokens=14, arrival_s=arrival))
        tokens = drain_to_rest(engine).tokens
        assert tokens == {(name, 0): expected(prompt, 14) for name, prompt in prompts.items()}
        counts.append(engine.status().num_preemptions)
    assert counts[0] == counts[1] > 0


def test_an_error_of_a_step_reaches_a_sequence_that_runs_in_the_next_one_already():
    right = expected([1, 2], 9)
    engine = overlapping(poison_token=right[3])
    engine.add(make_request([1, 2], "bad", n=2))
    engine.add(make_request([5, 6, 7], "good"))
    run = drain_to_rest(engine)
    assert run.tokens["bad", 0] == right[:4]
    assert run.tokens["good", 0] == expected([5, 6, 7], 8)
    assert isinstance(run.errors["bad"], Internal)


def test_the_same_request_may_come_again_while_its_old_row_runs():
    engine = overlapping()
    for _ in range(3):
        engine.add(make_request([1, 2, 3]))
        engine.step()
        engine.step()
        engine.abort(RequestKey("r", 0))
    engine.add(make_request([1, 2, 3]))
    assert drain_to_rest(engine).tokens == {("r", 0): expected([1, 2, 3], 8)}


def test_a_job_is_done_when_its_last_chunk_is_collected():
    engine = overlapping(SchedulerConfig(max_num_batched_tokens=8))
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(20))))
    engine.step()
    engine.grant("leg")
    events = []
    while engine.has_work:
        events += [(event.kind, event.num_tokens) for event in engine.step().prefill_events]
    assert events == [(PrefillEventKind.CHUNK, 8), (PrefillEventKind.CHUNK, 16), (PrefillEventKind.DONE, 20)]


def test_nothing_enters_the_prefix_cache_before_it_is_collected():
    engine = overlapping(block_size=4)
    engine.add(make_request(range(9), max_tokens=2))
    run = Run(engine)
    run.step()
    assert engine.match(tuple(range(9)), "", b"") == 0
    run.step()
    assert engine.match(tuple(range(9)), "", b"") == 8
    run.drain()
    assert_at_rest(engine)
