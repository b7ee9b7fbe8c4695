"""Matrix products of the C++ kernels: right, and a row has the same bits wherever it is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stratos.engine.layers.native_linear import NativeLinear
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(64, 1024), (97, 60), (24, 7), (300, 600), (1, 2), (65, 1), (17, 515)]
"""(out_features, in_features): full and ragged panels, even and odd sums, several depths."""
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_products_equal_float64(name: str, dtype: torch.dtype, out_features: int, in_features: int) -> None:
    torch.manual_seed(out_features)
    weight, bias = torch.randn(out_features, in_features).to(dtype), torch.randn(out_features).to(dtype)
    tolerance = {"rtol": max(torch.finfo(dtype).eps, 1e-5), "atol": 1e-4 if dtype == torch.float32 else 1e-3}
    for count in (1, 2, 5, 6, 7, 13, 260):
        x = torch.randn(count, in_features).to(dtype)
        expected = F.linear(x.double(), weight.double())
        linear = NativeLinear(native_library(name), weight, bias)
        torch.testing.assert_close(linear(x), (expected + bias.double()).to(dtype), **tolerance)
        exact = NativeLinear(native_library(name), weight, None, is_float=True)(x)
        torch.testing.assert_close(exact, expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(
    name: str, dtype: torch.dtype, out_features: int, in_features: int
) -> None:
    torch.manual_seed(0)
    linear = NativeLinear(native_library(name), torch.randn(out_features, in_features).to(dtype), None, is_float=True)
    x, before = torch.randn(520, in_features).to(dtype), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([linear(row) for row in x.split(1)])
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for count in (2, 3, 5, 6, 7, 12, 13, 100, 241, 520):
                assert torch.equal(linear(x[:count]), alone[:count])
                assert torch.equal(linear(x[520 - count :]), alone[520 - count :])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_a_row_that_is_not_finite_stays_alone(name: str) -> None:
    x = torch.randn(9, 33)
    linear = NativeLinear(native_library(name), torch.randn(20, 33), None)
    clean = linear(x)
    x[4, 7] = float("nan")
    poisoned = linear(x)
    assert bool(poisoned[4].isnan().all())
    others = [row for row in range(9) if row != 4]
    assert torch.equal(poisoned[others], clean[others])
