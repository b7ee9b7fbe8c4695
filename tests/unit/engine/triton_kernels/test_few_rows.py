"""Products of few rows are those of torch in every shape, and the fastest candidate of a size is taken."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.layers.product_choice import MeasuredLinear, ProductChoice, measure_products
from stratos.engine.triton_kernels.few_rows import FewRowsShape, few_rows_linear


@pytest.mark.parametrize("shape", [FewRowsShape(16, 32, 1), FewRowsShape(32, 16, 4), FewRowsShape(16, 32, 8)])
@pytest.mark.parametrize(("rows", "has_bias"), [(1, True), (17, False)])
def test_products_of_torch(shape: FewRowsShape, rows: int, has_bias: bool) -> None:
    """Inputs that fill no step, shares without inputs, and more rows than the least product has."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 100, device=DEVICE), torch.randn(37, 100, device=DEVICE)
    bias = torch.randn(37, device=DEVICE) if has_bias else None
    assert torch.allclose(few_rows_linear(x, weight, bias, shape), F.linear(x, weight, bias), atol=1e-4)


def test_the_fastest_is_taken_where_it_was_measured_and_what_cannot_run_never() -> None:
    calls: list[str] = []

    def marked(name: str, factor: float) -> object:
        def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            calls.append(name)
            return factor * F.linear(x, weight, bias)

        return product

    def broken(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError("out of resources")

    clock = {"slow": 2.0, "quick": 0.5, "even": 0.99}

    def seconds(works: list) -> float:
        calls.clear()
        assert len(works) == 2, "every weight of one size is read in turn"
        works[0]()
        return clock.get(calls[0], 1.0) if calls else 1.0

    choice = ProductChoice({"slow": marked("slow", 1), "quick": marked("quick", 2), "broken": broken})  # type: ignore[dict-item]
    layers = [MeasuredLinear(torch.ones(3, 4), None, choice) for _ in range(2)]
    measure_products([*layers, torch.nn.ReLU()], (1, 2, 128), seconds)
    assert choice.chosen == {(1, 3, 4): "quick", (2, 3, 4): "quick"}
    assert layers[0](torch.ones(2, 4)).tolist() == [[8.0] * 3] * 2
    assert layers[0](torch.ones(5, 4)).tolist() == [[4.0] * 3] * 5, "was not measured"
    even = ProductChoice({"even": marked("even", 1)})  # type: ignore[dict-item]
    measure_products([MeasuredLinear(torch.ones(3, 4), None, even) for _ in range(2)], (1,), seconds)
    assert even.chosen == {}, "not worth another kernel"
