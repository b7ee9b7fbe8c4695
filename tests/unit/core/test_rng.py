"""The counter RNG's definition against known values; the tensor form is compared with it elsewhere."""

from __future__ import annotations

import math

import pytest

from stratos.core.rng import fmix32, gumbel, noise_key


@pytest.mark.parametrize(("value", "mixed"), [(0, 0), (1, 0x514E28B7), (2, 0x30F4C306), (0xFFFFFFFF, 0x81F16F39)])
def test_the_finaliser_is_that_of_murmurhash3(value: int, mixed: int) -> None:
    assert fmix32(value) == mixed


@pytest.mark.parametrize(
    ("place", "first_bytes"), [((0, 0, 0), "9d908ecfb6b256de"), ((-1, 1, 1000), "7712478f0eba46bf")]
)
def test_a_key_is_the_beginning_of_a_sha256(place: tuple[int, int, int], first_bytes: str) -> None:
    low, high = noise_key(*place)
    assert low.to_bytes(4, "little") + high.to_bytes(4, "little") == bytes.fromhex(first_bytes)


def test_a_negative_seed_is_its_64_bits() -> None:
    assert noise_key(-1, 3, 4) == noise_key(2**64 - 1, 3, 4)


def test_known_noise() -> None:
    assert gumbel(0, 0, 0, 0) == pytest.approx(2.454871834728422, rel=1e-13)
    assert gumbel(7, 1, 5, 4095) == pytest.approx(-0.15742370097884983, rel=1e-13)


def test_seed_choice_position_and_token_each_change_the_noise() -> None:
    places = [(7, 1, 5, 9), (8, 1, 5, 9), (7, 2, 5, 9), (7, 1, 6, 9), (7, 1, 5, 10)]
    values = {gumbel(*place) for place in places}
    assert len(values) == len(places)
    assert all(math.isfinite(value) for value in values)
