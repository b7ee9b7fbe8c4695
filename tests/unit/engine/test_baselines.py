"""Baselines behind switches: each schedules as it says, and none changes a token."""

import itertools

import pytest

from stratos.core.request import ChoiceState, EngineRequest, PrefillJob, RequestKey
from stratos.core.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake import FakeConfig, FakeRunner, fake_generate
from stratos.engine.settings import SchedulerConfig

BASELINES = {
    "no KV cache": {"enable_kv_cache": False},
    "contiguous": {"kv_allocation": "contiguous"},
    "static": {"batching": "static"},
    "prefill-first": {"scheduling": "prefill-first"},
    "all": {
        "enable_kv_cache": False,
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


def make_engine(lag, num_blocks=96, max_model_len=64, **config):
    fake = FakeConfig(num_blocks=num_blocks, block_size=4, max_model_len=max_model_len, lag=lag)
    config = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "admission_mark": 1.0} | config
    return EngineCore(RecordingRunner(fake), SchedulerConfig(**config))


def make_request(name, prompt, max_tokens=8, n=1):
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        seed=0,
    )


def drain(engine, steps=2000):
    """Tokens by request and choice; ``steps`` bounds how far it goes."""
    tokens = {}
    for _ in range(steps):
        if not engine.has_work:
            return tokens
        for output in engine.step().outputs:
            tokens.setdefault((output.key.request_id, output.index), []).extend(output.token_ids)
        engine.verify()
    assert steps < 2000, "the engine did not come to rest"
    return tokens


@pytest.mark.parametrize("num_blocks", [48, 20])
@pytest.mark.parametrize("name", BASELINES)
def test_tokens_are_the_same(name, num_blocks, lag):
    """20 blocks make the paged ones preempt."""
    engine = make_engine(lag, num_blocks, **BASELINES[name], default_output_tokens=1)
    prompts = {f"r{i}": [(i * 11 + j) % 50 for j in range(1 + 5 * i)] for i in range(7)}
    for index, (request_id, prompt) in enumerate(prompts.items()):
        engine.add(make_request(request_id, prompt, 9 + index, n=1 + index % 2))
    tokens = drain(engine, 1)
    engine.add(make_request("gone", range(9), 50))
    for key, more in drain(engine, 4).items():
        tokens.setdefault(key, []).extend(more)
    engine.abort(RequestKey("gone", 0))
    for key, more in drain(engine).items():
        tokens.setdefault(key, []).extend(more)
    tokens.pop(("gone", 0), None)
    assert tokens == {
        (request_id, choice): fake_generate(prompt, 9 + index, prefill_weight=1, decode_weight=1)
        for index, (request_id, prompt) in enumerate(prompts.items())
        for choice in range(1 + index % 2)
    }
    ledger = engine.status().blocks
    assert ledger.free + ledger.cached == ledger.total


@pytest.mark.parametrize("name", BASELINES)
def test_hand_offs_work(name, lag):
    source, target = make_engine(lag, **BASELINES[name]), make_engine(lag, **BASELINES[name])
    request = make_request("r", range(30))
    source.add_prefill(PrefillJob(leg="leg", token_ids=request.prompt_ids[:-1]))
    source.step()
    assert target.reserve(request) is not None
    source.grant("leg")
    while source.has_work:
        source.step()
    target.scatter(request.key, 0, 29, 0, 1, source.gather("leg", 0, 29, 0, 1))
    target.commit(request.key)
    source.release_prefill("leg")
    right = fake_generate(request.prompt_ids, 8, prefill_weight=1, decode_weight=1)
    assert drain(target) == {("r", 0): right}
    for engine in (source, target):
        engine.verify()
        assert engine.status().blocks.allocated == engine.status().blocks.reserved == 0


def test_without_a_cache_every_step_computes_the_whole_sequence(lag):
    engine = make_engine(lag, enable_kv_cache=False)
    engine.add(make_request("r", range(10), 4))
    drain(engine)
    assert [(row.start, len(row.token_ids)) for plan in engine._runner.plans for row in plan.rows] == [
        (0, 10),
        (0, 11),
        (0, 12),
        (0, 13),
    ]


def test_contiguous_takes_a_whole_context_for_each_sequence(lag):
    engine = make_engine(lag, num_blocks=40, kv_allocation="contiguous")
    for index in range(4):
        engine.add(make_request(f"r{index}", [index], 8))
    engine.step()
    status = engine.status()
    assert (status.blocks.allocated, status.num_running, status.num_waiting) == (32, 2, 2)
    assert engine.match((0,) * 40, "", b"") == 0


def test_a_static_batch_takes_nobody_in_before_it_has_ended(lag):
    engine = make_engine(lag, batching="static", max_num_batched_tokens=6)
    for index in range(6):
        engine.add(make_request(f"r{index}", range(5), 3 + 4 * index))
    engine.step()
    assert engine.status().num_running == 4, "the batch is formed at once, whatever its prompts take"
    sizes = []
    while engine.has_work:
        engine.step()
        sizes.append(engine.status().num_running)
        if sizes[-1]:
            assert engine.reserve(make_request("late", range(5))) is None
    rises = [after for before, after in itertools.pairwise(sizes) if after > before]
    assert rises == [2]
    assert sizes[sizes.index(2, sizes.index(0)) - 1] == 0


def test_prefill_first_never_mixes_and_mixed_does(lag):
    for scheduling, mixes in (("prefill-first", False), ("mixed", True)):
        engine = make_engine(lag, scheduling=scheduling)
        for index in range(6):
            engine.add(make_request(f"r{index}", range(3 + 7 * index), 6))
            engine.step()
        drain(engine)
        kinds = [{len(row.token_ids) > 1 for row in plan.rows} for plan in engine._runner.plans]
        assert any(len(kind) == 2 for kind in kinds) == mixes
