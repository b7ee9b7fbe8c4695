"""The GPU sampler gives the tokens of the portable sampler, and its stages do what theirs do."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.core.rng import gumbel
from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.sampling.counter_rng import noise_keys
from stratos.engine.sampling.sampler import Sampled, Sampler
from stratos.engine.sampling.triton_sampler import TritonSampler
from stratos.engine.triton_kernels import sampling

VOCAB, EOS = 300, (0, 4)
MARK = Watermark(key=b"0123456789abcdef", gamma=0.4, delta=3.0)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks per row of a small vocabulary."""
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 256)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 256)


def spec(params: SamplingParams, row: int, **fields: Any) -> SampleSpec:
    defaults: dict[str, Any] = {"prompt_ids": (), "output_ids": (), "num_output_tokens": 0, "choice": 0}
    return SampleSpec(key=RequestKey("r", 0), seed=7, position=row, params=params, **{**defaults, **fields})


def both(logits: torch.Tensor, specs: list[SampleSpec], masks: Any = None) -> tuple[Sampled, Sampled]:
    device = torch.device(DEVICE)
    portable = Sampler(EOS, logits.shape[1], torch.device("cpu")).sample(logits, specs, masks)
    on_gpu = TritonSampler(EOS, logits.shape[1], device).sample(logits.to(device), specs, masks)
    return portable, on_gpu


TRUNCATIONS = [
    {"temperature": 0.0, "top_k": 5, "top_p": 0.9, "min_p": 0.2},
    *(
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        for temperature, top_k, top_p, min_p in itertools.product((0.7, 3.0), (0, 1, 5), (0.05, 0.9, 1.0), (0.0, 0.2))
        if top_k != 1 or (top_p, min_p) == (0.9, 0.2)  # of one token there is nothing to truncate
    ),
]


def test_tokens_of_the_portable_sampler() -> None:
    """Every second pair of rows is coarse: many duplicates, at thresholds too."""
    logits = torch.randn(len(TRUNCATIONS), VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    for first in (0, 1):
        logits[first::4] = logits[first::4].round()
    portable, on_gpu = both(logits, [spec(SamplingParams(**t), row) for row, t in enumerate(TRUNCATIONS)])
    assert on_gpu.token_ids == portable.token_ids


def test_noise_is_the_counter_rng() -> None:
    """With flat logits the token is the argmax of the noise."""
    logits = torch.zeros(4, 50, device=DEVICE)
    settings = torch.tensor([[1.0, 0.0, 1.0, 0.0]] * 4, dtype=torch.float64, device=DEVICE)
    keys = noise_keys([(9, 2, position) for position in range(4)], torch.device(DEVICE))
    tokens, _ = sampling.sample(logits, settings, keys)
    assert tokens.tolist() == [max(range(50), key=lambda t: gumbel(9, 2, p, t)) for p in range(4)]


def test_logits_processors() -> None:
    words = np.zeros(-(-VOCAB // 32), dtype=np.int32)
    words[1] = 0b1011
    history = {"prompt_ids": (1, 2, 250), "output_ids": (2, 2, 9), "num_output_tokens": 3}
    params: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"logit_bias": {5: 100.0, 7: -100.0}}, {}),
        ({"repetition_penalty": 1.7, "frequency_penalty": 0.5, "presence_penalty": -0.3}, history),
        ({"repetition_penalty": 0.5}, history),
        ({"frequency_penalty": -2.0, "bad_sequences": ((2, 9, 3), (17,), (9, 20))}, history),
        ({"min_tokens": 3, "stop_token_ids": (8,)}, {"num_output_tokens": 2}),
        ({"allowed_token_ids": (3, 31, 32, 299)}, {}),
        ({}, {}),
        ({"watermark": MARK}, history),
        (
            {"watermark": replace(MARK, num_context_tokens=4), "presence_penalty": 1.0, "bad_sequences": ((9,),)},
            history,
        ),
    ]
    logits = torch.randn(4 * len(params), VOCAB, generator=torch.Generator().manual_seed(1))
    logits[:, [0, 3, 4, 8, 9, 17, 20]] += 2.0
    specs = [
        spec(SamplingParams(temperature=0.0 if row % 2 else 1.5, **fields), row, **past)
        for row, (fields, past) in enumerate(params * 4)
    ]
    masks = dict.fromkeys(range(6, len(specs), len(params)), words)
    portable, on_gpu = both(logits, specs, masks)
    assert on_gpu.token_ids == portable.token_ids
    assert {on_gpu.token_ids[row] for row in masks} <= {32, 33, 35}


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter, where a row is not finite
def test_bad_rows_fail_alone() -> None:
    logits = torch.randn(4, VOCAB)
    logits[1, 7] = math.nan
    logits[2, 9] = math.inf
    specs = [spec(SamplingParams(top_p=0.9), row) for row in range(4)]
    specs[3] = spec(SamplingParams(allowed_token_ids=(5,), bad_sequences=((5,),)), 3)
    portable, on_gpu = both(logits, specs)
    assert on_gpu.errors == portable.errors == {1: NON_FINITE, 2: NON_FINITE, 3: ALL_BANNED}
    assert on_gpu.token_ids[0] == portable.token_ids[0]
    assert all(0 <= token < VOCAB for token in on_gpu.token_ids)


def test_logprobs_are_raw_and_ranked() -> None:
    logits = torch.randn(3, VOCAB).round()
    specs = [
        spec(SamplingParams(temperature=2.0, num_logprobs=count, logit_bias={3: 1.0}), row)
        for row, count in enumerate([None, 0, 4])
    ]
    portable, on_gpu = both(logits, specs)
    assert set(on_gpu.logprobs) == {1, 2}
    for row, record in portable.logprobs.items():
        found = on_gpu.logprobs[row]
        assert (found.sampled.token_id, found.sampled.rank) == (record.sampled.token_id, record.sampled.rank)
        assert found.sampled.logprob == pytest.approx(record.sampled.logprob, abs=1e-5)
        assert [t.rank for t in found.top] == [t.rank for t in record.top]
