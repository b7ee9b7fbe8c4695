"""All experts in one product give what they give one by one, wherever the tokens are routed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.engine.layers.linear import PlainLinear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.ops import TorchOps
from stratos.engine.layers.triton_linear import TritonCodesFactory
from stratos.engine.runner.cuda.experts import GroupedExperts, warm_up_experts
from stratos.engine.triton_kernels import experts
from tests.support.reference.made_codes import made_codes

CODED = [
    *((LinearScheme.INT4, 32), (LinearScheme.FP8, 0), (LinearScheme.MXFP4, 32), (LinearScheme.NVFP4, 0)),
    *((LinearScheme.NF4, 64), (LinearScheme.INT8_ROWS, 0), (LinearScheme.LLM_INT8, 0)),
]
EXPERTS, HIDDEN, INNER, CHOSEN = 5, 36, 12, 2


@pytest.fixture
def mixture(monkeypatch: pytest.MonkeyPatch) -> MixtureOfExperts:
    monkeypatch.setattr(experts, "MANY_ROWS", 32)
    torch.manual_seed(0)

    def linear(*shape: int) -> PlainLinear:
        return PlainLinear(torch.randn(shape, device=DEVICE) * 0.3, None)

    mlps = tuple(GatedMlp(linear(2 * INNER, HIDDEN), linear(HIDDEN, INNER), TorchOps()) for _ in range(EXPERTS))
    return MixtureOfExperts(
        router=linear(EXPERTS, HIDDEN), experts=mlps, routing=Routing(num_chosen=CHOSEN, norms_chosen=True)
    )


@pytest.mark.parametrize("tokens", [1, 7, 45])
def test_results_of_one_expert_after_the_other(mixture: MixtureOfExperts, tokens: int) -> None:
    """Few tokens, more than one block of one expert, and the shape for many."""
    assert GroupedExperts.can_take(mixture.experts)
    grouped = replace(mixture, grouped=GroupedExperts(mixture.experts))
    x = torch.randn(tokens, HIDDEN, device=DEVICE)
    assert torch.allclose(grouped(x), mixture(x), atol=1e-5)


@pytest.mark.parametrize(("scheme", "group"), CODED)
def test_experts_whose_weights_stay_codes_give_what_they_give_one_by_one(
    mixture: MixtureOfExperts, scheme: LinearScheme, group: int
) -> None:
    """Few pairs, and the shape for many; zeros, where the scheme has them."""
    make = TritonCodesFactory(torch.device(DEVICE), torch.float32, is_exact=False)

    def linear(num_out: int, seed: int) -> Any:
        return make(made_codes(scheme, num_out, 64, group, has_zeros=scheme == LinearScheme.INT4, seed=seed))

    mlps = tuple(GatedMlp(linear(128, seed), linear(64, seed), TorchOps()) for seed in range(EXPERTS))
    router = PlainLinear(torch.randn(EXPERTS, 64, device=DEVICE), None)
    coded = replace(mixture, experts=mlps, router=router)
    assert GroupedExperts.can_take(coded.experts)
    grouped = replace(coded, grouped=GroupedExperts(coded.experts))
    for tokens in (3, 45):
        x = torch.randn(tokens, 64, device=DEVICE)
        x[::4, 9] *= 20  # outliers
        assert torch.allclose(grouped(x), coded(x), atol=1e-5, rtol=1e-4)


def test_all_tokens_may_go_to_the_same_experts(mixture: MixtureOfExperts) -> None:
    x = torch.randn(1, HIDDEN, device=DEVICE).expand(19, HIDDEN).contiguous()
    grouped = replace(mixture, grouped=GroupedExperts(mixture.experts))
    assert len(mixture.route(x)[1].unique()) == CHOSEN
    assert torch.allclose(grouped(x), mixture(x), atol=1e-5)


def test_warming_up_runs_the_shape_for_few_rows_and_that_for_many(
    mixture: MixtureOfExperts, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped, sizes = GroupedExperts(mixture.experts), []

    def recorded(x: torch.Tensor, pairs: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(len(pairs))
        return grouped(x, pairs, *rest)

    layers = [SimpleNamespace(mlp=mlp) for mlp in (mixture.experts[0], mixture, replace(mixture, grouped=recorded))]
    decoder: Any = SimpleNamespace(layers=layers, embedding=torch.ones(3, HIDDEN, device=DEVICE))
    warm_up_experts(decoder)
    few, many = sizes
    assert few < experts.least_pairs_of_many(EXPERTS) <= many


def test_experts_of_two_schemes_are_left_to_the_others(mixture: MixtureOfExperts) -> None:
    make = TritonCodesFactory(torch.device(DEVICE), torch.float32, is_exact=False)
    one, other = (make(made_codes(LinearScheme.INT4, 64, 64, group)) for group in (32, 64))
    floats = mixture.experts[0].down
    for second in (other, floats):
        pair = [replace(mixture.experts[0], gate_up=one, down=down) for down in (one, second)]
        assert not GroupedExperts.can_take(pair)


def test_packed_biased_or_unaligned_weights_are_left_to_the_others(mixture: MixtureOfExperts) -> None:
    first = mixture.experts[0]
    aside = torch.zeros(2 * INNER * HIDDEN + 1, device=DEVICE)[1:].view(2 * INNER, HIDDEN)
    for gate_up in (PlainLinear(aside, None), PlainLinear(aside.clone(), aside[:, 0]), lambda x: x):
        assert not GroupedExperts.can_take((*mixture.experts, replace(first, gate_up=gate_up)))
