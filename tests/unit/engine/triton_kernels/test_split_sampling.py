"""Sampling by several programs a row gives the tokens of sampling by one, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.sampling.counter_rng import noise_keys
from stratos.engine.sampling.triton_sampler import TritonSampler
from stratos.engine.triton_kernels import sampling, split_sampling
from tests.unit.engine.triton_kernels.test_sampling import spec

VOCAB = 250
INF = float("inf")
SETTINGS = [
    (0.0, 5, 0.9, 0.0, 2.0), (3.0, 0, 1.0, 0.2, 2.0), (1.0, 0, 1.0, 0.0, 2.0), (0.7, 5, 0.8, 0.0, 1.0),
    (3.0, 60, 0.9, 0.0, 0.3), (0.7, 0, 0.9, 0.1, 2.0), (1.0, 40, 1.0, 0.5, 1.0), (0.9, 0, 1.0, 0.0, 1.0),
]  # fmt: skip
"""Temperature, top-k, top-p, min-p and spread of a row's logits: each filter alone, together, and none."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 256)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 256)
    for name, size in (("PART", 128), ("BLOCK", 128), ("NOISE_BLOCK", 32), ("SEARCH_BLOCK", 256), ("CANDIDATES", 32)):
        monkeypatch.setattr(split_sampling, name, size)


@dataclass
class Rows:
    logits: torch.Tensor
    settings: torch.Tensor
    keys: torch.Tensor


def _rows() -> Rows:
    """Every second row is coarse: many equals, at thresholds too. The last one has nothing that is allowed."""
    settings = torch.tensor(SETTINGS, dtype=torch.float64)
    logits = torch.randn(len(SETTINGS), VOCAB, generator=torch.Generator().manual_seed(1)) * settings[:, 4:].float()
    logits[1::2] = (logits[1::2] * 2).round() / 2
    logits[3, 20:] = -INF
    logits[-1] = -INF
    keys = noise_keys([(9, 0, row) for row in range(len(SETTINGS))], torch.device(DEVICE))
    return Rows(logits.to(DEVICE), settings[:, :4].contiguous().to(DEVICE), keys)


def test_tokens_of_one_program_a_row_alone_and_in_a_batch() -> None:
    """The flat row has more candidates than are kept, so it is searched as a whole."""
    rows = _rows()
    whole = sampling.sample(rows.logits, rows.settings, rows.keys)
    split = split_sampling.sample(rows.logits, rows.settings, rows.keys)
    assert torch.equal(whole[0], split[0])
    assert torch.equal(whole[1], split[1])
    assert split[1].tolist() == [0] * (len(SETTINGS) - 1) + [1]
    alone, _ = split_sampling.sample(*(tensor[5:6] for tensor in (rows.logits, rows.settings, rows.keys)))
    assert alone.tolist() == split[0][5:6].tolist()


def test_rows_without_truncation_take_one_launch_less(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    sample = split_sampling.sample

    def recorded(*tensors: torch.Tensor, is_truncated: bool) -> Any:
        calls.append(is_truncated)
        return sample(*tensors, is_truncated=is_truncated)

    monkeypatch.setattr(split_sampling, "sample", recorded)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    for params in (SamplingParams(temperature=2.0, min_p=0.01), SamplingParams(top_k=3)):
        tokens = [
            TritonSampler((), VOCAB, torch.device(DEVICE), is_split=is_split).sample(logits, [spec(params, 0)])
            for is_split in (True, False)
        ]
        assert tokens[0].token_ids == tokens[1].token_ids
    assert calls == [False, True]


@triton.jit
def _estimate_kernel(out, hashes, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    tl.store(out + lanes, split_sampling.noise_estimate(tl.load(hashes + lanes).to(tl.uint32, bitcast=True)))


def test_the_estimate_of_the_noise_is_within_its_bound() -> None:
    """At both ends of the hashes, around the change of formula, and in between."""
    ends = np.arange(1 << 12, dtype=np.uint64)
    edge = np.uint64(0.9375 * 2**32)
    between = np.random.default_rng(0).integers(0, 1 << 32, (1 << 14) - 4 * len(ends), dtype=np.uint64)
    hashes = np.concatenate([ends, (1 << 32) - 1 - ends, edge + ends, edge - ends, between]).astype(np.uint32)
    out = torch.empty(len(hashes), dtype=torch.float32, device=DEVICE)
    _estimate_kernel[(1,)](out, torch.from_numpy(hashes.view(np.int32)).to(DEVICE), COUNT=len(hashes))
    noise = -np.log(-np.log((hashes.astype(np.float64) + 0.5) / 2**32))
    assert float(np.abs(out.cpu().numpy() - noise).max()) < 2e-5
    assert split_sampling.NOISE_MARGIN.value > 2 * 2e-5
