"""Baselines as switches: each schedules as it says, and none changes a token."""

import itertools

import pytest

from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob, RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.worlds.engine_driver import Run, assert_at_rest, drain, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

BASELINES = {
    "no KV cache": {"kv_cache": False},
    "contiguous": {"kv_allocation": "contiguous"},
    "static": {"batching": "static"},
    "prefill-first": {"scheduling": "prefill-first"},
    "all": {
        "kv_cache": False,
        "kv_allocation": "contiguous",
        "batching": "static",
        "scheduling": "prefill-first",
    },
}


class RecordingRunner(FakeRunner):
    """Keeps what it was told to do."""

    def __init__(self, config):
        super().__init__(config)
        self.plans = []

    def launch(self, plan):
        self.plans.append(plan)
        return super().launch(plan)


def make_engine(overlap, num_blocks=96, max_model_len=64, **config):
    fake = FakeConfig(num_blocks=num_blocks, block_size=4, max_model_len=max_model_len, overlap=overlap)
    config = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "kv_watermark": 1.0} | config
    return EngineCore(RecordingRunner(fake), scheduler_config(**config))


@pytest.mark.parametrize("num_blocks", [48, 20])
@pytest.mark.parametrize("name", BASELINES)
def test_tokens_are_the_same(name, num_blocks, overlap):
    """20 blocks make the paged ones preempt."""
    engine = make_engine(overlap, num_blocks, **BASELINES[name], default_output_tokens=1)
    prompts = {f"r{i}": [(i * 11 + j) % 50 for j in range(1 + 5 * i)] for i in range(7)}
    for index, (request_id, prompt) in enumerate(prompts.items()):
        engine.add(make_request(prompt, request_id, 1 + index % 2, max_tokens=9 + index))
    run = Run(engine)
    run.step()
    engine.add(make_request(range(9), "gone", max_tokens=50))
    for _ in range(4):
        run.step()
    engine.abort(RequestKey("gone", 0))
    run.drain()
    run.tokens.pop(("gone", 0), None)
    assert run.tokens == {
        (request_id, choice): expected(prompt, 9 + index)
        for index, (request_id, prompt) in enumerate(prompts.items())
        for choice in range(1 + index % 2)
    }
    assert_at_rest(engine)


@pytest.mark.parametrize("name", BASELINES)
def test_hand_offs_work(name, overlap):
    source, target = make_engine(overlap, **BASELINES[name]), make_engine(overlap, **BASELINES[name])
    request = make_request(range(30))
    source.add_prefill(PrefillJob(leg="leg", token_ids=request.prompt_ids[:-1]))
    source.step()
    assert target.reserve(request) is not None
    source.grant("leg")
    while source.has_work:
        source.step()
    target.scatter(request.key, KvRange(0, 29, 0, 1), source.gather("leg", KvRange(0, 29, 0, 1)))
    target.commit(request.key)
    source.release_prefill("leg")
    assert drain(target).tokens == {("r", 0): expected(request.prompt_ids)}
    for engine in (source, target):
        engine.verify()
        assert engine.status().blocks.allocated == engine.status().blocks.reserved == 0


def test_without_a_cache_every_step_computes_the_whole_sequence(overlap):
    engine = make_engine(overlap, kv_cache=False)
    engine.add(make_request(range(10), max_tokens=4))
    drain(engine)
    assert [(row.start, len(row.token_ids)) for plan in engine.runner.plans for row in plan.rows] == [
        (0, 10),
        (0, 11),
        (0, 12),
        (0, 13),
    ]


def test_contiguous_takes_a_whole_context_for_each_sequence(overlap):
    engine = make_engine(overlap, num_blocks=40, kv_allocation="contiguous")
    for index in range(4):
        engine.add(make_request([index], f"r{index}"))
    engine.step()
    status = engine.status()
    assert (status.blocks.allocated, status.num_running, status.num_waiting) == (32, 2, 2)
    assert engine.match((0,) * 40, "", b"") == 0


def test_a_static_batch_takes_nobody_in_before_it_has_ended(overlap):
    engine = make_engine(overlap, batching="static", max_num_batched_tokens=6)
    for index in range(6):
        engine.add(make_request(range(5), f"r{index}", max_tokens=3 + 4 * index))
    engine.step()
    assert engine.status().num_running == 4, "the batch is formed at once, for prompts of any length"
    sizes = []
    while engine.has_work:
        engine.step()
        sizes.append(engine.status().num_running)
        if sizes[-1]:
            assert engine.reserve(make_request(range(5), "late")) is None
    rises = [after for before, after in itertools.pairwise(sizes) if after > before]
    assert rises == [2]
    assert sizes[sizes.index(2, sizes.index(0)) - 1] == 0


def test_prefill_first_never_mixes_and_mixed_does(overlap):
    for scheduling, mixes in (("prefill-first", False), ("mixed", True)):
        engine = make_engine(overlap, scheduling=scheduling)
        run = Run(engine)
        for index in range(6):
            engine.add(make_request(range(3 + 7 * index), f"r{index}", max_tokens=6))
            run.step()
        run.drain()
        kinds = [{len(row.token_ids) > 1 for row in plan.rows} for plan in engine.runner.plans]
        assert any(len(kind) == 2 for kind in kinds) == mixes
