"""The tensor form of the counter RNG against its definition, value by value."""

from __future__ import annotations

import torch

from stratos.core import rng
from stratos.engine.sampling.counter_rng import gumbel, hashes, noise_keys

PLACES = [(0, 0, 0), (1, 0, 5), (2**63 - 1, 3, 4095), (-(2**63), 15, 17), (-1, 1, 2**20), (0xDEADBEEF, 0, 1)]
TOKENS = [*range(300), 4095, 65535, 65536, 131071, 2**20, 2**31 - 1]


def test_hashes_are_equal_bit_for_bit() -> None:
    ours = hashes(noise_keys(PLACES, torch.device("cpu")), torch.tensor(TOKENS, dtype=torch.int32))
    for row, place in zip((ours.to(torch.int64) & rng.MASK32).tolist(), PLACES, strict=True):
        low, high = rng.noise_key(*place)
        expected = [
            rng.fmix32((rng.fmix32(((t * rng.TOKEN_MULTIPLIER) & rng.MASK32) ^ low) + high) & rng.MASK32)
            for t in TOKENS
        ]
        assert row == expected


def test_noise_equals_the_definition() -> None:
    ours = gumbel(noise_keys(PLACES, torch.device("cpu")), torch.tensor(TOKENS, dtype=torch.int32))
    assert ours.dtype == torch.float64
    expected = torch.tensor([[rng.gumbel(*place, token) for token in TOKENS] for place in PLACES], dtype=torch.float64)
    assert torch.allclose(ours, expected, rtol=1e-13, atol=1e-13)


def test_token_ids_may_differ_per_row() -> None:
    keys = noise_keys(PLACES[:2], torch.device("cpu"))
    full = gumbel(keys, torch.arange(50, dtype=torch.int32))
    ids = torch.tensor([[3, 1], [49, 0]], dtype=torch.int32)
    assert torch.equal(gumbel(keys, ids), full.gather(1, ids.long()))


def test_noise_has_the_mean_and_variance_of_a_gumbel() -> None:
    noise = gumbel(
        noise_keys([(7, 0, p) for p in range(50)], torch.device("cpu")), torch.arange(4000, dtype=torch.int32)
    )
    assert abs(float(noise.mean()) - 0.57722) < 0.015
    assert abs(float(noise.var()) - 1.64493) < 0.03
