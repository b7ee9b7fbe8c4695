"""Products of quantised weights: what the codes stand for, exact sums, and a row has the same bits wherever it is."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.weight_schemes import NF4, OUTLIER, LinearScheme
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.quantised_linear import NO_TILES, QuantisedLinear
from tests.support.pairwise import pairwise
from tests.support.reference.native_kernels import NATIVE_SETS, by_groups, native_library

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = [
    (LinearScheme.INT4, 32),
    (LinearScheme.INT4, 64),
    (LinearScheme.INT4, 0),
    (LinearScheme.INT8, 32),
    (LinearScheme.INT8, 0),
    (LinearScheme.FP8, 128),
    (LinearScheme.FP8, 0),
    (LinearScheme.MXFP4, 32),
    (LinearScheme.NF4, 64),
]
"""Scheme and group; 0 is one group for all inputs."""
FOUR_BITS = (LinearScheme.INT4, LinearScheme.MXFP4, LinearScheme.NF4)
SHAPES = [(64, 128), (97, 384), (1, 640)]
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def made(scheme: LinearScheme, outputs: int, inputs: int, group: int, *, has_zeros: bool = False) -> QuantisedWeight:
    """Every code of the scheme, and scales that differ."""
    torch.manual_seed(outputs + inputs)
    group = group or inputs
    codes = torch.randint(0, 16 if scheme in FOUR_BITS else 256, (outputs, inputs), dtype=torch.uint8)
    if scheme == LinearScheme.FP8:
        codes[(codes & 0x7F) == 0x7F] = 0x35  # not a number
    shape = (outputs, inputs // group)
    zeros = torch.randint(0, 17, shape, dtype=torch.uint8) if has_zeros else None
    return QuantisedWeight(scheme=scheme, codes=codes, scales=torch.rand(shape) / 64 + 1e-3, zeros=zeros)


def widened(weight: QuantisedWeight, name: str, dtype: torch.dtype) -> Tensor:
    """What products multiply: NF4's numbers are rounded where pairs of bfloat16 are multiplied."""
    if weight.scheme != LinearScheme.NF4 or dtype != torch.bfloat16 or name in ("avx2", "avx512"):
        return weight.floats()
    return torch.tensor(NF4).bfloat16().float()[weight.codes.int()] * weight.scales.repeat_interleave(weight.group, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("scheme", "group"), CODES)
def test_products_equal_those_of_what_the_codes_stand_for(
    name: str, dtype: torch.dtype, scheme: LinearScheme, group: int, has_zeros: bool
) -> None:
    if has_zeros and scheme != LinearScheme.INT4:
        return
    for outputs, inputs in SHAPES:
        if group and inputs % group:
            continue
        weight, bias = made(scheme, outputs, inputs, group, has_zeros=has_zeros), torch.randn(outputs).to(dtype)
        linear = QuantisedLinear(native_library(name), weight, bias, dtype, is_float=True)
        for count in (1, 5, 7, 40, 250):
            x = torch.randn(count, inputs).to(dtype)
            floats = widened(weight, name, dtype).double()
            expected = F.linear(x.double(), floats, bias.double())
            # rounding of a sum grows with the size of what is added
            size = F.linear(x.double().abs(), floats.abs())
            assert bool(((linear(x).double() - expected).abs() <= 2e-6 * size + 1e-6).all())


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("scheme", [LinearScheme.INT8, LinearScheme.FP8, *FOUR_BITS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_is_widened_to_its_number(name: str, scheme: LinearScheme, dtype: torch.dtype) -> None:
    weight = made(scheme, 64, 256, 32)
    codes = torch.arange(256).repeat(64, 1).to(torch.uint8) & (15 if scheme in FOUR_BITS else 255)
    if scheme == LinearScheme.FP8:
        codes[(codes & 0x7F) == 0x7F] = 0
    weight = QuantisedWeight(scheme=scheme, codes=codes, scales=torch.ones_like(weight.scales))
    unit = torch.eye(256).to(dtype)
    got = QuantisedLinear(native_library(name), weight, None, dtype, is_float=True)(unit)
    assert torch.equal(got, widened(weight, name, dtype).T)


@pytest.mark.parametrize(
    ("scheme_and_group", "name", "dtype"),
    pairwise([*CODES, (LinearScheme.INT8_ROWS, 0), (LinearScheme.LLM_INT8, 0)], list(NATIVE_SETS), DTYPES),
)
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(
    name: str, dtype: torch.dtype, scheme_and_group: tuple[LinearScheme, int]
) -> None:
    scheme, group = scheme_and_group
    weight = made(scheme, 97, 384, group, has_zeros=scheme == LinearScheme.INT4)
    linear = QuantisedLinear(native_library(name), weight, None, dtype, is_float=True)
    x, before = torch.randn(300, 384).to(dtype), torch.get_num_threads()
    x[::7, ::50] *= 9  # outliers of some rows
    try:
        torch.set_num_threads(1)
        alone = torch.cat([linear(row) for row in x.split(1)])
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for count in (2, 5, 6, 7, 13, 33, 241, 300):
                assert torch.equal(linear(x[:count]), alone[:count])
                assert torch.equal(linear(x[300 - count :]), alone[300 - count :])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("inputs", [32, 416, 448, 480])
def test_groups_that_are_no_multiple_of_those_taken_together_give_the_same_bits(name: str, inputs: int) -> None:
    linear = QuantisedLinear(native_library(name), made(LinearScheme.INT4, 97, inputs, 32), None, torch.bfloat16)
    x = torch.randn(170, inputs).bfloat16()
    assert torch.equal(linear(x), torch.cat([linear(row) for row in x.split(1)]))


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(
    ("scheme_and_group", "name", "dtype"), pairwise([*CODES, (LinearScheme.INT4, 192)], list(NATIVE_SETS), DTYPES)
)
def test_groups_taken_together_have_the_bits_of_single_ones(
    name: str, dtype: torch.dtype, scheme_and_group: tuple[LinearScheme, int], has_zeros: bool
) -> None:
    scheme, group = scheme_and_group
    weight = made(scheme, 97, 384, group, has_zeros=has_zeros and scheme == LinearScheme.INT4)
    linear = QuantisedLinear(native_library(name), weight, None, dtype, is_float=True)
    x = torch.randn(170, 384).to(dtype)
    for count in (1, 2, 6, 7, 9, 13, 65, 170):
        single, together = by_groups(linear, x[:count])
        assert torch.equal(single, together)


def cut_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of rows, as integers.h defines them."""
    largest = x.float().abs().amax(-1, keepdim=True)
    factor = torch.full_like(largest, 127) / largest  # ``127 / largest`` would multiply by a rounded inverse
    return (x.float() * factor).round(), largest / torch.full_like(largest, 127)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 128), (97, 60), (24, 7), (1, 2), (70, 6143)])
@pytest.mark.parametrize("tile_rows", [1, NO_TILES])
def test_sums_of_bytes_are_exact(name: str, dtype: torch.dtype, outputs: int, inputs: int, tile_rows: int) -> None:
    weight = made(LinearScheme.INT8_ROWS, outputs, inputs, 0)
    linear = QuantisedLinear(native_library(name), weight, None, dtype, is_float=True)
    linear.argument.tile_rows = tile_rows
    for count in (1, 6, 13, 33, 250):
        x = torch.randn(count, inputs).to(dtype)
        codes, scales = cut_to_bytes(x)
        sums = codes.double() @ weight.codes.view(torch.int8).double().T
        assert torch.equal(linear(x), sums.float() * scales * weight.scales.T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", [LinearScheme.INT8_ROWS, LinearScheme.LLM_INT8])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 128), (33, 60), (129, 193), (200, 1100), (1, 2)])
def test_bytes_have_the_same_bits_on_every_instruction_set_by_tiles_and_by_vectors(
    dtype: torch.dtype, scheme: LinearScheme, outputs: int, inputs: int
) -> None:
    weight, bias = made(scheme, outputs, inputs, 0), torch.randn(outputs).to(dtype)
    x = torch.randn(530, inputs).to(dtype)
    x[3], x[4], x[5, 0], x[6, -1] = 0, 1e-30, torch.inf, -40  # zeros, denormal results, no number, an outlier
    for count in (1, 3, 15, 16, 17, 31, 47, 96, 530):
        found = set()
        for name, tile_rows in itertools.product(NATIVE_SETS, (0, 1, 20, NO_TILES)):
            linear = QuantisedLinear(native_library(name), weight, bias, dtype)
            linear.argument.tile_rows = tile_rows
            found.add(linear(x[:count]).float().nan_to_num(7).numpy().tobytes())
        assert len(found) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 128), (97, 60), (24, 7)])
def test_outliers_of_a_row_are_multiplied_as_they_are(name: str, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight = made(LinearScheme.LLM_INT8, outputs, inputs, 0)
    linear = QuantisedLinear(native_library(name), weight, None, dtype, is_float=True)
    x = torch.randn(250, inputs).to(dtype)
    x[3, 2], x[5, 1], x[5, 4] = OUTLIER, -40, 7.5
    x[9] = 6.5 + torch.arange(inputs) % 3
    is_large = x.float().abs() >= OUTLIER
    large, small = torch.where(is_large, x.float(), 0), torch.where(is_large, 0, x)
    codes, scales = cut_to_bytes(small)
    numbers = weight.codes.view(torch.int8).double()
    codes = torch.where(scales == 0, 0, codes)  # of rows in which nothing is small
    sums = (codes.double() @ numbers.T).float() * scales
    got = linear(x)
    plain = ~is_large.any(-1)
    assert torch.equal(got[plain], sums[plain] * weight.factors.T)
    expected = (sums.double() + large.double() @ numbers.T) * weight.factors.T.double()
    size = (sums.double().abs() + large.double().abs() @ numbers.abs().T) * weight.factors.T.double()
    assert bool(((got.double() - expected).abs() <= 1e-6 * size).all())
    cut = QuantisedLinear(native_library(name), rows_of(weight), None, dtype, is_float=True)(x)
    error, cut_error = ((each - F.linear(x.float(), weight.floats())).abs()[5].amax() for each in (got, cut))
    assert error < cut_error / 2, "a large element makes the step of the others large"


def rows_of(weight: QuantisedWeight) -> QuantisedWeight:
    """The same weight for products that cut every element."""
    return QuantisedWeight(scheme=LinearScheme.INT8_ROWS, codes=weight.codes, scales=weight.factors)


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_the_longest_sums_of_the_largest_bytes_neither_overflow_nor_saturate(name: str) -> None:
    inputs, ends = 65536, torch.tensor([-128, 127], dtype=torch.int8)
    codes = ends.repeat_interleave(32).unsqueeze(1).expand(64, inputs).contiguous().view(torch.uint8)
    weight = QuantisedWeight(scheme=LinearScheme.INT8_ROWS, codes=codes, scales=torch.ones(64, 1))
    linear = QuantisedLinear(native_library(name), weight, None, torch.float32)
    linear.argument.tile_rows = 2  # so two rows go by tiles, and one by vectors
    x = torch.ones(2, inputs)
    x[1] = -1
    expected = torch.outer(torch.tensor([1.0, -1.0]), ends.repeat_interleave(32).double()) * 127 * inputs
    for rows in (x, x[:1]):
        wanted = expected[: len(rows)].float() * torch.tensor(1 / 127, dtype=torch.float32)
        assert torch.equal(linear(rows), wanted)


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(
    "scheme", [LinearScheme.INT8_ROWS, LinearScheme.LLM_INT8, *FOUR_BITS, LinearScheme.FP8], ids=str
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_alone(name: str, scheme: LinearScheme, bad: float) -> None:
    weight = made(scheme, 20, 64, 0)
    linear, x = QuantisedLinear(native_library(name), weight, None, torch.float32), torch.randn(9, 64)
    clean = linear(x)
    x[4, 7] = bad
    poisoned, others = linear(x), [row for row in range(9) if row != 4]
    assert not bool(poisoned[4].isfinite().any())
    assert torch.equal(poisoned[others], clean[others])


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8"])
def test_rounding_at_load_is_to_the_nearest_code_and_keeps_no_floats(kind: str) -> None:
    torch.manual_seed(1)
    weight = torch.randn(96, 256, dtype=torch.bfloat16)
    quantised = rounded(weight, kind)
    step = quantised.scales.repeat_interleave(quantised.group, 1)
    error = (quantised.floats() - weight.float()).abs()
    if kind.startswith("int"):
        assert bool((error <= step * 0.5001).all())
    most = {"mxfp4": 0.25, "nf4": 0.152}.get(kind, 0.075)  # of NF4's numbers, half of the largest gap
    assert bool((error <= most * weight.float().abs().amax()).all())
    linear = QuantisedLinear(native_library(NATIVE_SETS[0]), quantised, None, torch.bfloat16)
    full = rounded(torch.randn(128, 1024), kind)
    resident = QuantisedLinear(native_library(NATIVE_SETS[0]), full, None, torch.bfloat16).resident_bytes
    assert resident <= (0.32 if kind in ("int4", "mxfp4", "nf4") else 0.55) * 2 * 128 * 1024
    assert linear(torch.randn(3, 256, dtype=torch.bfloat16)).shape == (3, 96)
    zeros = rounded(torch.zeros(4, 64), kind)
    assert bool((zeros.floats() == 0).all())
    assert bool((zeros.scales > 0).all())


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8"])
def test_rounding_at_load_takes_no_tensor_of_another_device(kind: str) -> None:
    with FakeTensorMode():
        quantised = rounded(torch.empty(4, 128, device="cuda"), kind)
    assert {quantised.codes.device.type, quantised.scales.device.type} == {"cuda"}


def switched(weight: QuantisedWeight, **switches: bool) -> QuantisedLinear:
    library, device = native_library(NATIVE_SETS[0]), torch.device("cpu")
    factory = LinearFactory(device, torch.bfloat16, enable_prepacked_gemm=False, library=library, **switches)
    product = factory.quantised(weight)
    assert isinstance(product, QuantisedLinear)
    return product


@pytest.mark.parametrize("integer_tiles", [True, False])
def test_the_switch_leaves_bytes_to_vectors(integer_tiles: bool) -> None:
    product = switched(made(LinearScheme.INT8_ROWS, 64, 128, 0), integer_tiles=integer_tiles)
    assert product.argument.tile_rows == (0 if integer_tiles else NO_TILES)


@pytest.mark.parametrize("panel_runs", [True, False])
def test_the_switch_has_panels_taken_in_turn(panel_runs: bool) -> None:
    product = switched(made(LinearScheme.INT4, 64, 128, 32), panel_runs=panel_runs)
    assert product.argument.single_panels == (not panel_runs)


@pytest.mark.parametrize("grouped_codes", [True, False])
def test_the_switch_leaves_groups_single(grouped_codes: bool) -> None:
    product = switched(made(LinearScheme.INT4, 64, 128, 32), grouped_codes=grouped_codes)
    assert product.argument.single_groups == (not grouped_codes)
