"""The experts of a layer by grouped products, routed on the device.

Nothing asks the host, and every shape follows from the number of tokens: so a step can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stratos.engine.layers.linear import PlainLinear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.models.decoder import Decoder
from stratos.engine.triton_kernels.experts import experts_linear, least_pairs_of_many

ALIGNMENT_BYTES = 16
"""Bytes of weights that a load of the kernel takes at once."""


class GroupedExperts:
    """Gate/up and down products of all experts; keeps addresses, the experts keep the weights."""

    def __init__(self, experts: Sequence[GatedMlp]) -> None:
        gate_up, down = ([_weight(getattr(expert, name)) for expert in experts] for name in ("gate_up", "down"))
        self._experts = tuple(experts)
        self._ops, self._gate, device = experts[0].ops, experts[0].gate, gate_up[0].device
        self._num_inner2, self._num_hidden = gate_up[0].shape[0], down[0].shape[0]
        self._gate_up, self._down = (_addresses(weights, device) for weights in (gate_up, down))
        self._bounds = torch.arange(len(experts) + 1, dtype=torch.int64, device=device)

    @staticmethod
    def can_take(experts: Sequence[GatedMlp]) -> bool:
        """Plain weights without a bias, at addresses that the kernel can load from."""
        linears = [linear for expert in experts for linear in (expert.gate_up, expert.down)]
        return all(
            isinstance(linear, PlainLinear)
            and linear.bias is None
            and linear.weight.is_contiguous()
            and linear.weight.data_ptr() % ALIGNMENT_BYTES == 0
            for linear in linears
        )

    def __call__(self, x: Tensor, pairs: Tensor, order: Tensor, num_chosen: int) -> Tensor:
        """Results of all pairs of a token and an expert.

        Args:
            x: [tokens, hidden].
            pairs: int64 [tokens * num_chosen], the expert of each pair, token by token.
            order: int64, the pairs sorted by expert.
            num_chosen: experts of a token.

        Returns:
            [pairs, hidden] in the order of ``order``.
        """
        begins = torch.searchsorted(pairs.index_select(0, order), self._bounds)
        inner = experts_linear(x.contiguous(), self._gate_up, begins, self._num_inner2, order, num_chosen)
        return experts_linear(self._ops.gated(inner, self._gate).contiguous(), self._down, begins, self._num_hidden)


def _addresses(weights: list[Tensor], device: torch.device) -> Tensor:
    return torch.tensor([weight.data_ptr() for weight in weights], dtype=torch.int64).to(device)


def _weight(linear: object) -> Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def group_experts(decoder: Decoder) -> None:
    """Take grouped products in a loaded decoder, where its weights allow it; the weights stay where they are."""
    for index, layer in enumerate(decoder.layers):
        if isinstance(layer.mlp, MixtureOfExperts) and GroupedExperts.can_take(layer.mlp.experts):
            mlp = replace(layer.mlp, grouped=GroupedExperts(layer.mlp.experts))
            decoder.layers[index] = replace(layer, mlp=mlp)


def warm_up_experts(decoder: Decoder) -> None:
    """Compile the kernel for few rows and for many: which one a step takes depends on its number of tokens."""
    # layers of a model have experts of one shape
    mlps = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.grouped]
    for mlp in mlps[:1]:
        many = -(-least_pairs_of_many(len(mlp.experts)) // mlp.num_chosen)
        for num_tokens in (1, many):
            mlp(decoder.embedding.new_zeros(num_tokens, decoder.embedding.shape[1]))
