"""The experts of a layer by grouped products, routed on the device.

Nothing asks the host, and every shape follows from the number of tokens: so a step can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stratos.engine.layers.linear import Linear, PlainLinear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.triton_linear import TritonCodes
from stratos.engine.models.decoder import Decoder
from stratos.engine.triton_kernels.codes.experts import ExpertCodes, expert_codes_linear
from stratos.engine.triton_kernels.experts import experts_linear, least_pairs_of_many

ALIGNMENT_BYTES = 16
"""Bytes of weights that a load of the kernel takes at once."""


class GroupedExperts:
    """Gate/up and down products of all experts; keeps addresses, the experts keep the weights."""

    def __init__(self, experts: Sequence[GatedMlp]) -> None:
        self._experts = tuple(experts)
        self._ops, self._gate = experts[0].ops, experts[0].gate
        self._gate_up = _grouped([expert.gate_up for expert in experts])
        self._down = _grouped([expert.down for expert in experts])
        device = self._gate_up.addresses.device
        self._bounds = torch.arange(len(experts) + 1, dtype=torch.int64, device=device)

    @staticmethod
    def can_take(experts: Sequence[GatedMlp]) -> bool:
        """Plain weights, or codes of one scheme, without a bias, at addresses that the kernels can load from."""
        products = [[getattr(expert, name) for expert in experts] for name in ("gate_up", "down")]
        return all(all(map(_is_plain, linears)) or _are_codes_of_one_kind(linears) for linears in products)

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
        inner = _product(x.contiguous(), self._gate_up, begins, order, num_chosen)
        return _product(self._ops.gated(inner, self._gate).contiguous(), self._down, begins)


@dataclass(frozen=True, slots=True)
class ExpertFloats:
    """Where the weights of one layer's experts lie."""

    addresses: Tensor
    """int64 [experts]."""
    num_out: int


def _grouped(linears: Sequence[Linear]) -> ExpertFloats | ExpertCodes:
    if codes := [linear.weight for linear in linears if isinstance(linear, TritonCodes)]:
        return ExpertCodes.of(codes)
    weights = [linear.weight for linear in linears if isinstance(linear, PlainLinear)]
    addresses = torch.tensor([weight.data_ptr() for weight in weights], dtype=torch.int64)
    return ExpertFloats(addresses.to(weights[0].device), weights[0].shape[0])


def _product(
    x: Tensor, experts: ExpertFloats | ExpertCodes, begins: Tensor, order: Tensor | None = None, num_chosen: int = 0
) -> Tensor:
    if isinstance(experts, ExpertCodes):
        return expert_codes_linear(x, experts, begins, order, num_chosen)
    return experts_linear(x, experts.addresses, begins, experts.num_out, order, num_chosen)


def _is_plain(linear: object) -> bool:
    return isinstance(linear, PlainLinear) and linear.bias is None and _is_loadable(linear.weight)


def _are_codes_of_one_kind(linears: Sequence[Linear]) -> bool:
    codes = [linear for linear in linears if isinstance(linear, TritonCodes) and linear.bias is None]
    parts = [part for layer in codes for part in (layer.weight.codes, layer.weight.scales, layer.weight.parts)]
    return (
        len(codes) == len(linears)
        and len({layer.variant for layer in codes}) == 1
        and all(part is None or _is_loadable(part) for part in parts)
    )


def _is_loadable(weight: Tensor) -> bool:
    return weight.is_contiguous() and weight.data_ptr() % ALIGNMENT_BYTES == 0


def group_experts(decoder: Decoder) -> None:
    """Take grouped products in a loaded decoder, where its weights allow it; the weights stay where they are."""
    for index, layer in enumerate(decoder.layers):
        if isinstance(layer.mlp, MixtureOfExperts) and GroupedExperts.can_take(layer.mlp.experts):
            mlp = replace(layer.mlp, grouped=GroupedExperts(layer.mlp.experts))
            decoder.layers[index] = replace(layer, mlp=mlp)


def regroup_experts(decoder: Decoder) -> None:
    """Take the addresses of grouped experts again: their weights have moved."""
    if any(isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.grouped for layer in decoder.layers):
        group_experts(decoder)


def warm_up_experts(decoder: Decoder) -> None:
    """Compile the kernel for few rows and for many: which one a step takes depends on its number of tokens."""
    # layers of a model have experts of one shape
    mlps = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.grouped]
    for mlp in mlps[:1]:
        many = -(-least_pairs_of_many(len(mlp.experts)) // mlp.num_chosen)
        for num_tokens in (1, many):
            mlp(decoder.embedding.new_zeros(num_tokens, decoder.embedding.shape[1]))
