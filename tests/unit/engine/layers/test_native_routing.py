"""Routing to experts by the C++ kernels: the choices of torch, and weights as close as floats are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.ops import TorchOps
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
ROUTINGS = {
    "softmax": (7, Routing(num_chosen=3, norms_chosen=False)),
    "softmax, normed": (40, Routing(num_chosen=8, norms_chosen=True)),
    "all": (5, Routing(num_chosen=5, norms_chosen=True)),
    "sigmoid": (33, Routing(num_chosen=4, norms_chosen=True, is_sigmoid=True, scale=2.5)),
    "groups": (
        48,
        Routing(num_chosen=6, norms_chosen=True, is_sigmoid=True, scale=1.7, num_groups=8, num_chosen_groups=3),
    ),
}


def route(build: str, routing: Routing, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return NativeOps(native_library(build), torch.float32).route(logits.clone(), routing, bias)


@pytest.mark.parametrize("build", NATIVE_SETS)
@pytest.mark.parametrize("name", ROUTINGS)
def test_choices_and_weights_are_those_of_torch(build: str, name: str) -> None:
    num_experts, routing = ROUTINGS[name]
    torch.manual_seed(1)
    logits = torch.randn(300, num_experts) * 3
    for bias in (None, torch.randn(num_experts) * 0.2):
        weights, chosen = route(build, routing, logits, bias)
        expected, expected_chosen = TorchOps().route(logits, routing, bias)
        assert torch.equal(chosen, expected_chosen)
        assert torch.allclose(weights, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("build", NATIVE_SETS)
def test_equal_scores_go_to_the_lowest_index(build: str) -> None:
    weights, chosen = route(build, Routing(num_chosen=4, norms_chosen=False), torch.zeros(3, 37))
    assert chosen.tolist() == [[0, 1, 2, 3]] * 3
    assert torch.allclose(weights, torch.full((3, 4), 1 / 37))


@pytest.mark.parametrize("build", NATIVE_SETS)
def test_a_row_that_is_not_finite_has_no_weights_and_harms_no_other(build: str) -> None:
    routing, logits = Routing(num_chosen=4, norms_chosen=True), torch.randn(5, 37)
    healthy, choices = route(build, routing, logits)
    for value in (float("nan"), float("inf")):
        logits[2, 20] = value
        weights, chosen = route(build, routing, logits)
        assert bool(weights[2].isnan().all())
        assert bool(((chosen >= 0) & (chosen < 37)).all())
        others = [0, 1, 3, 4]
        assert torch.equal(weights[others], healthy[others])
        assert torch.equal(chosen[others], choices[others])


@pytest.mark.parametrize("build", NATIVE_SETS)
def test_sigmoids_are_those_of_torch(build: str) -> None:
    x = torch.cat((torch.linspace(-90, 90, 203), torch.tensor([float("inf"), float("-inf")])))
    assert torch.allclose(NativeOps(native_library(build), torch.float32).sigmoid(x), x.sigmoid(), rtol=2e-6, atol=1e-7)
