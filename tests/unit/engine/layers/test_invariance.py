"""Row padding: found by trying, applied to every size, and never wrong about the result."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stratos.engine.layers import linear as linear_layers
from stratos.engine.layers.exact_ops import ExactTorchOps
from stratos.engine.layers.invariance import (
    InvariantLinear,
    RowByRow,
    RowPadding,
    RowProbe,
    probed_rows,
)
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.ops import exp2
from stratos.engine.layers.thread_scope import using_threads

MAX_ROWS = 512


def probe(linear: Callable[[Tensor], Tensor]) -> RowProbe:
    return RowProbe(lambda weight, bias: linear, (3, 3), False, torch.float32)


@pytest.mark.parametrize(
    ("rule", "padding"),
    [
        ({}, RowPadding(1, 1)),
        ({1: 0.5}, RowPadding(2, 1)),
        ({1: 0.5, 2: 0.25, 3: 0.25, 6: 1}, RowPadding(4, 4)),
        ({m: m / 8 for m in range(1, 600)}, None),
    ],
)
def test_the_cheapest_padding_that_agrees_everywhere_is_found(
    rule: dict[int, float], padding: RowPadding | None
) -> None:
    assert probe(lambda x: x * 2 + rule.get(x.shape[0], 0.0)).padding() == padding


def test_rows_that_differ_within_one_product_are_noticed() -> None:
    def linear(x: Tensor) -> Tensor:
        edge = torch.arange(x.shape[0]) >= x.shape[0] // 8 * 8
        return x + edge[:, None]

    assert probe(linear).padding() == RowPadding(8, 8)


def test_another_order_of_summation_shows_behind_a_bfloat16() -> None:
    def make(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        def linear(x: Tensor) -> Tensor:
            parts = (x[:, None].float() * weight.float()).split(64 if len(x) == 1 else 128, -1)
            return functools.reduce(torch.add, [part.contiguous().sum(-1) for part in parts]).to(x.dtype)

        return linear

    for in_features in (200, 512, 1000):
        assert RowProbe(make, (8, in_features), False, torch.bfloat16).padding() == RowPadding(2, 1)


@pytest.mark.parametrize("count", [1, 2, 5, 64, MAX_ROWS, MAX_ROWS + 3])
def test_padding_changes_no_result(count: int) -> None:
    weight, x = torch.randn(5, 7), torch.randn(count, 7)
    sizes = []

    def linear(rows: Tensor) -> Tensor:
        sizes.append(rows.shape[0])
        return rows @ weight.T

    tried = RowPadding(8, 8).sizes(probed_rows(0))
    assert tried[-1] == MAX_ROWS
    torch.testing.assert_close(InvariantLinear(linear, tried)(x), x @ weight.T)
    assert set(sizes) <= set(tried)
    torch.testing.assert_close(RowByRow(linear)(x), x @ weight.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("out_features", "in_features"), [(48, 2816), (97, 60), (24, 7), (9, 300), (1, 2)])
def test_a_row_alone_equals_the_row_in_any_batch(
    dtype: torch.dtype, is_packed: bool, out_features: int, in_features: int
) -> None:
    torch.manual_seed(0)
    factory = LinearFactory(torch.device("cpu"), dtype, enable_prepacked_gemm=is_packed, exact=True)
    linear = factory(torch.randn(out_features, in_features).to(dtype), torch.randn(out_features).to(dtype))
    x = torch.randn(70, in_features).to(dtype)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(70)])
    for count in (2, 3, 6, 11, 19, 40, 70):
        assert torch.equal(linear(x[:count]), alone[:count])
        assert torch.equal(linear(x[70 - count :]), alone[70 - count :])
    assert factory.is_exact


def test_layers_made_later_by_one_thread_are_padded_for_the_threads_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    class Plain:
        """With two threads, a row alone is another sum than in a batch."""

        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            pass

        def __call__(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return x + (0.5 if torch.get_num_threads() == 2 and len(x) == 1 else 0.0)

    monkeypatch.setattr(linear_layers, "PlainLinear", Plain)
    factory = LinearFactory(torch.device("cpu"), torch.float32, enable_prepacked_gemm=False, exact=True)
    with using_threads(2):
        factory.fix_threads()
    with using_threads(1):
        linear = factory(torch.randn(8, 8))
        assert torch.get_num_threads() == 1
    sizes.clear()
    with using_threads(2):
        linear(torch.randn(1, 8))
    assert sizes == [2]


def test_the_activation_has_the_same_bits_wherever_an_element_lies() -> None:
    values = torch.cat((torch.randn(4000) * 8, torch.tensor([0.0, 200.0, -200.0, 1e-30])))
    whole = exp2(values)
    torch.testing.assert_close(whole, torch.exp2(values.clamp(-126, 126)), rtol=3e-7, atol=0)
    assert torch.equal(whole, torch.cat([exp2(part) for part in values.split([1, 17, 30, 3956])]))
    gate_up = torch.randn(9, 26) * 5
    torch.testing.assert_close(
        ExactTorchOps().silu_mul(gate_up), torch.nn.functional.silu(gate_up[:, :13]) * gate_up[:, 13:]
    )
