"""Two real engines, one hand-off: the output equals ``transformers``, and one altered block is noticed."""

from pathlib import Path

import pytest

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, EngineRequest, PrefillJob, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from tests.support.reference.hf_reference import MODELS, Reference, Verdict, spread_prompts
from tests.support.worlds.terms import make_terms

NUM_TOKENS = 24
ADAPTER = "reference-prose"


def load_engine(block_size: int, quantization: str = "auto") -> EngineCore:
    config = RunnerConfig(
        model_path=Path(MODELS / "base"),
        quantization=quantization,
        block_size=block_size,
        kv_pool_bytes=64 << 20,
        num_threads=1,
    )
    return EngineCore(TorchRunner.load(config), SchedulerConfig(max_num_batched_tokens=200))


@pytest.fixture(scope="module")
def pair():
    source, target = load_engine(16), load_engine(32)
    files = read_adapter_files(MODELS / "adapters" / ADAPTER)
    for engine in (source, target):
        engine.load_adapter(files)
    return source, target, files.digest


def generate(pair, prompt, digest="", *, alter_token=None, name="r", is_alone=False):
    """Prefill in one engine, or in none, decode in the other; returns tokens and log probabilities."""
    source, target, _ = pair
    request = EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, num_logprobs=0),
        seed=0,
        terms=make_terms(adapter_digest=digest, cache_salt=name.encode()),
    )
    if is_alone or len(prompt) == 1:
        target.add(request)
    else:
        hand_over(source, target, request, alter_token)
    outputs = [output for _ in range(NUM_TOKENS + 1) for output in target.step().outputs]
    assert target.status().blocks.allocated == source.status().blocks.allocated == 0
    return (
        [token for output in outputs for token in output.token_ids],
        [p.sampled.logprob for output in outputs for p in output.logprobs],
    )


def hand_over(source, target, request, alter_token):
    prompt, layers = request.prompt_ids, source.info.geometry.num_layers
    source.add_prefill(PrefillJob(leg="leg", token_ids=prompt[:-1], terms=request.terms))
    source.step()
    assert target.reserve(request).num_skip_tokens == 0
    source.grant("leg")
    sent = 0
    while sent < len(prompt) - 1:
        for event in source.step().prefill_events:
            for layer in range(0, layers, 2):  # two layers a frame
                payload = source.gather("leg", KvRange(sent, event.num_tokens, layer, layer + 2))
                if alter_token is not None and sent <= alter_token < event.num_tokens and layer == 0:
                    payload[4 * (alter_token - sent) * source.info.geometry.head_dim + 3] ^= 0x40
                target.scatter(request.key, KvRange(sent, event.num_tokens, layer, layer + 2), payload)
            sent = event.num_tokens
    target.commit(request.key)
    source.release_prefill("leg")


@pytest.mark.parametrize("adapter", [pytest.param(None, marks=pytest.mark.slow), ADAPTER])
def test_handed_over_output_equals_transformers(pair, adapter):
    reference, verdict = Reference(adapter), Verdict()
    for index, prompt in enumerate(spread_prompts(9, 900)):
        tokens, logprobs = generate(pair, prompt, pair[2] if adapter else "", name=f"{adapter}{index}")
        reference.check(verdict, prompt, tokens, logprobs)
    assert len(verdict.ties) <= 1


def test_one_altered_value_is_noticed(pair):
    """The control: if this passed, the parity above would prove nothing about the KV that moved."""
    prompt = spread_prompts(9, 900)[6]
    tokens, logprobs = generate(pair, prompt, alter_token=len(prompt) // 2, name="altered")
    with pytest.raises(AssertionError, match=r"logits differ|log probability"):
        Reference().check(Verdict(), prompt, tokens, logprobs)


@pytest.mark.parametrize(
    "quantization",
    ["int8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int4", "fp8", "nf4", "llm-int8"))],
)
def test_a_quantised_engine_continues_what_another_computed(quantization):
    source, target = (load_engine(block_size, quantization) for block_size in (16, 32))
    assert source.info.identity.numerics_id == target.info.identity.numerics_id
    files, prompt = read_adapter_files(MODELS / "adapters" / ADAPTER), spread_prompts(9, 900)[4]
    for engine in (source, target):
        engine.load_adapter(files)
    pair = (source, target, files.digest)
    for digest in ("", files.digest):
        # the second request of a name finds the prefix of the first in the cache
        alone = [generate(pair, prompt, digest, name=f"alone{digest}", is_alone=True) for _ in range(2)]
        assert alone[0] == alone[1] == generate(pair, prompt, digest, name=f"handed{digest}")
