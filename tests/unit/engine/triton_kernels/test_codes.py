"""Products of weights that stay codes, on a GPU: those of what the codes stand for, in exact mode in one order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.reference.triton_interpreter import DEVICE
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import BYTE_ROWS, NF4, OUTLIER, LinearScheme
from stratos.engine.layers.triton_linear import TritonCodes, TritonCodesFactory
from stratos.engine.triton_kernels.codes.byte_products import byte_codes_linear, cut_rows
from stratos.engine.triton_kernels.codes.packing import packed
from stratos.engine.triton_kernels.codes.products import FEW_ROWS, MANY_ROWS, codes_linear
from tests.support.reference.made_codes import FOUR_BITS, NAN, made_codes

ON = torch.device(DEVICE)
KINDS = [
    (LinearScheme.INT4, 32, False),
    (LinearScheme.INT4, 96, True),
    (LinearScheme.INT4, 128, True),
    (LinearScheme.INT4, 0, False),
    (LinearScheme.INT4, 0, True),
    (LinearScheme.INT8, 32, False),
    (LinearScheme.INT8, 0, False),
    (LinearScheme.FP8, 128, False),
    (LinearScheme.FP8, 0, False),
    (LinearScheme.MXFP4, 32, False),
    (LinearScheme.NF4, 64, False),
    (LinearScheme.NVFP4, 0, False),
]
"""Scheme, group (0: all inputs) and whether there are zeros."""


def product(weight: QuantisedWeight | NestedWeight, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return codes_linear(x, packed(weight, ON, x.dtype), bias, is_exact=False)


@pytest.mark.parametrize(("scheme", "group", "has_zeros"), KINDS)
def test_products_are_those_of_what_the_codes_stand_for(scheme: LinearScheme, group: int, has_zeros: bool) -> None:
    """Outputs that fill no program, inputs that fill no step, and one row beside more than a program has."""
    weight = made_codes(scheme, 70, 384 if group in (96, 128) else 320, group, has_zeros=has_zeros)
    floats, bias = weight.floats().to(ON), torch.randn(70, device=DEVICE)
    for rows, own in ((1, bias), (FEW_ROWS, None), (MANY_ROWS + 3, bias)):
        x = torch.randn(rows, weight.shape[1], device=DEVICE)
        error = (product(weight, x, own) - F.linear(x, floats, own)).abs()
        assert bool((error <= 2e-6 * F.linear(x.abs(), floats.abs()) + 1e-6).all())
    assert product(weight, torch.empty(0, weight.shape[1], device=DEVICE)).shape == (0, 70)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scheme", [LinearScheme.INT8, LinearScheme.FP8, *FOUR_BITS], ids=str)
def test_every_code_is_widened_to_its_number(scheme: LinearScheme, dtype: torch.dtype) -> None:
    codes = torch.arange(256).repeat(2, 1).to(torch.uint8) & (15 if scheme in FOUR_BITS else 255)
    if scheme == LinearScheme.FP8:
        codes[(codes & NAN) == NAN] = 0
    weight: QuantisedWeight | NestedWeight
    if scheme == LinearScheme.NVFP4:
        parts = torch.arange(16, dtype=torch.uint8).mul(8).repeat(2, 1).view(2, 8, 2)  # no scale is 0 but the first
        weight = NestedWeight(scheme=scheme, codes=codes, parts=parts, wholes=torch.ones(2, 1, 1))
    else:
        weight = QuantisedWeight(scheme=scheme, codes=codes, scales=torch.ones(2, 256 // 64))
    expected = torch.tensor(NF4).to(dtype)[codes.int()] if scheme == LinearScheme.NF4 else weight.floats().to(dtype)
    assert torch.equal(product(weight, torch.eye(256, dtype=dtype, device=DEVICE)).T.cpu(), expected)


@pytest.mark.parametrize(("scheme", "group", "has_zeros"), KINDS[1:3] + KINDS[-3:])
def test_a_row_has_the_same_bits_in_any_batch_in_exact_mode(scheme: LinearScheme, group: int, has_zeros: bool) -> None:
    weight = packed(made_codes(scheme, 65, 384, group, has_zeros=has_zeros), ON, torch.float32)
    x, bias = torch.randn(MANY_ROWS + 6, 384, device=DEVICE), torch.randn(65, device=DEVICE)
    whole = codes_linear(x, weight, bias, is_exact=True)
    for begin, end in ((0, 1), (31, 34), (MANY_ROWS + 5, MANY_ROWS + 6), (7, 50)):
        assert torch.equal(codes_linear(x[begin:end], weight, bias, is_exact=True), whole[begin:end])


def test_inputs_in_the_order_of_their_groups_are_put_there_before() -> None:
    weight = made_codes(LinearScheme.INT4, 8, 96, 32)
    assert isinstance(weight, QuantisedWeight)
    ordered = QuantisedWeight(
        scheme=weight.scheme, codes=weight.codes, scales=weight.scales, order=torch.randperm(96)
    )  # fmt: skip
    x = torch.randn(3, 96, device=DEVICE)
    got = TritonCodesFactory(ON, x.dtype, is_exact=False)(ordered)(x)
    assert torch.allclose(got, F.linear(x, ordered.floats().to(ON)), atol=1e-5)
    assert not torch.allclose(got, F.linear(x, weight.floats().to(ON)), atol=1e-2)


@pytest.mark.parametrize("scheme", [LinearScheme.INT4, LinearScheme.MXFP4, LinearScheme.NVFP4, LinearScheme.FP8])
def test_no_float_copy_stays(scheme: LinearScheme) -> None:
    weight = made_codes(scheme, 64, 512, 32 if scheme in FOUR_BITS else 0)
    layer = TritonCodesFactory(ON, torch.bfloat16, is_exact=False)(weight)
    assert isinstance(layer, TritonCodes)
    bits = {LinearScheme.INT4: 5, LinearScheme.MXFP4: 4.25, LinearScheme.NVFP4: 4.5625, LinearScheme.FP8: 8.0625}
    assert layer.weight.nbytes * 8 == bits[scheme] * 64 * 512


def test_blocks_of_gguf_files_have_no_product() -> None:
    empty = torch.empty(1, 256, dtype=torch.uint8)
    weight = NestedWeight(scheme=LinearScheme.Q4_K, codes=empty, parts=empty, wholes=torch.empty(1, 1, 2))
    with pytest.raises(InvalidCheckpoint, match="q4-k have no product on a GPU"):
        packed(weight, ON, torch.bfloat16)


def spread_rows(rows: int, inputs: int) -> torch.Tensor:
    """Rows of which some have outliers, one nothing but zeros and one a NaN."""
    torch.manual_seed(rows)
    x = torch.randn(rows, inputs, device=DEVICE)
    x[::3, 5::50] *= 20
    x[1], x[2, 7] = 0, float("nan")
    return x


@pytest.mark.parametrize("scheme", BYTE_ROWS, ids=str)
def test_products_of_bytes_are_exact_sums_and_outliers_as_they_are(scheme: LinearScheme) -> None:
    """Against integers of 64 bits; inputs fill no step."""
    weight, has_outliers = made_codes(scheme, 70, 301), scheme == LinearScheme.LLM_INT8
    assert isinstance(weight, QuantisedWeight)
    x, bias = spread_rows(MANY_ROWS + 3, 301), torch.randn(70, device=DEVICE)
    codes = weight.codes.view(torch.int8).to(ON)
    is_outlier = (x.abs() >= OUTLIER) & has_outliers
    small = x.masked_fill(is_outlier, 0)
    largest = small.abs().amax(-1, keepdim=True)
    cut = torch.nan_to_num(small * (torch.full_like(largest, 127) / largest)).round()
    sums = (cut.long() @ codes.long().T).float() * (largest / torch.full_like(largest, 127))
    expected = (sums + torch.where(is_outlier, x, 0.0) @ codes.float().T) * weight.factors.T.to(ON) + bias
    got = byte_codes_linear(x, packed(weight, ON, x.dtype), bias, is_exact=False)
    assert bool(got[2].isnan().all())
    assert torch.equal(got[1], bias)
    others = [row for row in range(len(x)) if row != 2]
    assert torch.allclose(got[others], expected[others], atol=1e-4, rtol=1e-5)
    row_codes, _ = cut_rows(x, has_outliers=has_outliers)
    assert torch.equal(row_codes[others].float(), cut[others])


@pytest.mark.parametrize("scheme", BYTE_ROWS, ids=str)
def test_a_row_of_bytes_has_the_same_bits_in_any_batch(scheme: LinearScheme) -> None:
    weight, x = packed(made_codes(scheme, 65, 384), ON, torch.float32), spread_rows(MANY_ROWS + 6, 384)[3:]
    whole = byte_codes_linear(x, weight, None, is_exact=True)
    for begin, end in ((0, 1), (31, 34), (7, 50)):
        assert torch.equal(byte_codes_linear(x[begin:end], weight, None, is_exact=True), whole[begin:end])


def test_sums_of_bytes_need_32_bits() -> None:
    """127 * 127 * 4096 is above 2^24 of float32 and 2^15 of short integers."""
    weight = QuantisedWeight(
        scheme=LinearScheme.INT8_ROWS, codes=torch.full((1, 4096), 127, dtype=torch.uint8), scales=torch.ones(1, 1)
    )
    x = torch.full((1, 4096), 127.0, device=DEVICE)
    got = byte_codes_linear(x, packed(weight, ON, x.dtype), None, is_exact=False)
    assert got.item() == float(torch.tensor(127 * 127 * 4096, dtype=torch.float32))
