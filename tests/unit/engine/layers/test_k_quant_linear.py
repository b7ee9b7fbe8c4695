"""Products of K-quants and NVFP4: their numbers, the same bits wherever a row is, schemes in one layer, few bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from stratos.engine.checkpoint.gguf.blocks import as_codes, as_floats
from stratos.engine.checkpoint.quantised_weight import NestedWeight
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.native_linear import JoinedLinear
from stratos.engine.layers.quantised_linear import NestedLinear
from stratos.engine.layers.thread_scope import one_thread, using_threads
from tests.support.reference.gguf_models import random_blocks
from tests.support.reference.native_kernels import NATIVE_SETS, TILE_SETS, by_groups, native_library

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["Q4_K", "Q5_K", "Q6_K", "NVFP4"]
BYTES = {"Q4_K": 0.32, "Q5_K": 0.36, "Q6_K": 0.42, "NVFP4": 0.29}
"""In memory, of bfloat16's."""
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A team of threads that waits for cores costs more than the products."""
    with one_thread():
        yield


def made(kind: str, outputs: int, inputs: int) -> NestedWeight:
    """Random blocks: every code, scale and minimum."""
    if kind == "NVFP4":
        return nvfp4(outputs, inputs)
    weight = as_codes(kind, random_blocks(kind, outputs, inputs, torch.Generator().manual_seed(outputs + inputs)))
    assert isinstance(weight, NestedWeight)
    return weight


def nvfp4(outputs: int, inputs: int) -> NestedWeight:
    """Every code, and every scale from 0 on."""
    torch.manual_seed(outputs + inputs)
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    parts = torch.randint(0, 0x7F, (outputs, inputs // 32, 2), dtype=torch.uint8)
    wholes = (torch.rand(outputs, 1, 1) + 0.5) / 4096
    return NestedWeight(scheme=LinearScheme.NVFP4, codes=codes, parts=parts, wholes=wholes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_equal_those_of_the_blocks_floats(name: str, dtype: torch.dtype, kind: str) -> None:
    for outputs, inputs in ((97, 768), (1, 512)):
        weight, bias = made(kind, outputs, inputs), torch.randn(outputs).to(dtype)
        linear = NestedLinear(native_library(name), weight, bias, dtype, is_float=True)
        floats, codes = weight.floats().double(), weight.codes.double()
        if kind == "NVFP4":
            scales, largest = torch.zeros(outputs, inputs // 32).double(), floats.abs()
        else:
            scales = (weight.wholes.repeat_interleave(8, 1) * weight.parts.float().abs()).amax(-1).double()
            largest = codes * scales.repeat_interleave(32, 1)
        for count in (1, 7, 250):
            x = torch.randn(count, inputs).to(dtype)
            expected = F.linear(x.double(), floats, bias.double())
            # a minimum is taken off after the sum that holds it: errors grow with both
            steps = x.double().abs().unflatten(1, (-1, 32)).sum(-1)
            size = F.linear(x.double().abs(), largest) + F.linear(steps, scales)
            assert bool(((linear(x).double() - expected).abs() <= 2e-6 * size + 1e-6).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "NVFP4"])
def test_every_code_is_widened_to_its_number(name: str, dtype: torch.dtype, kind: str) -> None:
    blocks = random_blocks(kind, 70, 256, torch.Generator().manual_seed(3))
    weight = as_codes(kind, blocks)
    assert isinstance(weight, NestedWeight)
    expected = as_floats(kind, blocks.flatten(0, 1)).view(70, 256)
    assert torch.equal(weight.floats(), expected)
    got = NestedLinear(native_library(name), weight, None, dtype, is_float=True)(torch.eye(256).to(dtype))
    assert torch.allclose(got, expected.T, rtol=3e-7, atol=1e-7), "a fused sum is rounded once, ggml's twice"
    if kind == "Q6_K":
        assert torch.equal(got, expected.T), "it has no minimum to add"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_every_code_of_nvfp4_is_widened_to_its_number(name: str, dtype: torch.dtype) -> None:
    weight = nvfp4(70, 224)  # no multiple of 256
    got = NestedLinear(native_library(name), weight, None, dtype, is_float=True)(torch.eye(224).to(dtype))
    assert torch.equal(got, weight.floats().T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(name: str, dtype: torch.dtype, kind: str) -> None:
    linear = NestedLinear(native_library(name), made(kind, 97, 512), None, dtype, is_float=True)
    x = torch.randn(241, 512).to(dtype)
    alone = torch.cat([linear(row) for row in x.split(1)])
    for threads in (1, 3):
        with using_threads(threads):
            for count in (7, 33, 241):
                assert torch.equal(linear(x[:count]), alone[:count])
                assert torch.equal(linear(x[241 - count :]), alone[241 - count :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_taken_together_have_the_bits_of_single_ones(name: str, dtype: torch.dtype, kind: str) -> None:
    linear = NestedLinear(native_library(name), made(kind, 97, 768), None, dtype, is_float=True)
    x = torch.randn(70, 768).to(dtype)
    for count in (1, 6, 9, 13, 70):
        single, together = by_groups(linear, x[:count])
        assert torch.equal(single, together)


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("inputs", [32, 480])
def test_steps_that_are_no_multiple_of_those_taken_together_give_the_same_bits(name: str, inputs: int) -> None:
    linear = NestedLinear(native_library(name), nvfp4(97, inputs), None, torch.bfloat16)
    x = torch.randn(170, inputs).bfloat16()
    assert torch.equal(linear(x), torch.cat([linear(row) for row in x.split(1)]))


@pytest.mark.skipif(len(TILE_SETS) < 2, reason="needs a processor with tiles")
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_and_their_twin_give_the_same_bits(kind: str) -> None:
    weight, x = made(kind, 97, 768), torch.randn(37, 768).bfloat16()
    tiles, twin, others = (
        NestedLinear(native_library(name), weight, None, torch.bfloat16, is_float=True)(x)
        for name in (*TILE_SETS, "avx2")
    )
    assert torch.equal(tiles, twin)
    assert not torch.equal(tiles, others), "sums in another order have other bits: the test can fail"


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_alone(name: str, kind: str, bad: float) -> None:
    linear, x = NestedLinear(native_library(name), made(kind, 20, 256), None, torch.bfloat16), torch.randn(9, 256)
    x = x.bfloat16()
    clean = linear(x)
    x[4, 7] = bad
    poisoned, others = linear(x), [row for row in range(9) if row != 4]
    assert not bool(poisoned[4].isfinite().any())
    assert torch.equal(poisoned[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_one_layer_of_several_schemes_gives_each_ones_bits(name: str, dtype: torch.dtype) -> None:
    factory = LinearFactory(torch.device("cpu"), dtype, enable_prepacked_gemm=False, library=native_library(name))
    weights = [made("Q4_K", 70, 256), torch.randn(33, 256).to(dtype), made("Q6_K", 64, 256)]
    bias = torch.randn(167).to(dtype)
    joined = factory.joined(weights, bias)
    assert isinstance(joined, JoinedLinear)
    pieces = bias.split([70, 33, 64])
    parts = [
        factory.plain(weight, own) if isinstance(weight, torch.Tensor) else factory.quantised(weight, own)
        for weight, own in zip(weights, pieces, strict=True)
    ]
    for count in (1, 7, 40):
        x = torch.randn(count, 256).to(dtype)
        assert torch.equal(joined(x), torch.cat([part(x) for part in parts], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_no_floats_stay_behind(kind: str) -> None:
    linear = NestedLinear(native_library(NATIVE_SETS[0]), made(kind, 128, 1024), None, torch.bfloat16)
    assert linear.resident_bytes <= BYTES[kind] * 2 * 128 * 1024
