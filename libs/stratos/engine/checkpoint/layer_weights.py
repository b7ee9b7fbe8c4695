"""Weights of a layer as they are read, before the decoder makes products of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight, fused

AnyWeight = Tensor | QuantisedWeight | NestedWeight


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Weight [out_features, in_features] and bias [out_features] of one (fused) linear layer."""

    weight: AnyWeight | tuple[AnyWeight, ...]
    """Several: those of one product whose layers are stored by different schemes, one behind the other."""
    bias: Tensor | None


def joined_weights(weights: Iterable[AnyWeight]) -> AnyWeight | tuple[AnyWeight, ...]:
    """The weight of one product of several layers, one behind the other: neighbours of one scheme are one."""
    joined: list[AnyWeight] = []
    for weight in weights:
        last = joined[-1] if joined else None
        if isinstance(weight, NestedWeight) and isinstance(last, NestedWeight) and last.scheme == weight.scheme:
            joined[-1] = NestedWeight.joined([last, weight])
        elif isinstance(weight, QuantisedWeight) and isinstance(last, QuantisedWeight) and last.scheme == weight.scheme:
            joined[-1] = fused([last, weight])
        else:
            joined.append(weight)
    return joined[0] if len(joined) == 1 else tuple(joined)


def split_gate(qkv: LinearWeights, size: int) -> tuple[LinearWeights, LinearWeights]:
    """Projections of q, k and v, and that of the gate, whose ``size`` rows lie behind as many of q."""
    assert isinstance(qkv.weight, Tensor)

    def parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat((tensor[:size], tensor[2 * size :])), tensor[size : 2 * size]

    kept, gate = parts(qkv.weight)
    biases = (None, None) if qkv.bias is None else parts(qkv.bias)
    return LinearWeights(kept, biases[0]), LinearWeights(gate, biases[1])


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A gated MLP, or one expert; gate and up fused along the output."""

    gate_up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentParts:
    """Weights that latent attention has in place of q/k/v."""

    query_down: LinearWeights | None
    """``None``: queries come from the hidden state."""
    query_norm: Tensor | None
    query: LinearWeights
    down: LinearWeights
    """The latent vector, then the key that all heads share, not rotated."""
    norm: Tensor
    """Norm of the latent vector."""
    up: Tensor
    """Key, then value of each head from it: [heads, plain + value, rank]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """One decoder layer without its MLP or experts, q/k/v fused along the output."""

    before_attention: Tensor | None
    """Weights of the norms [hidden], as in ``NormNames``."""
    after_attention: Tensor | None
    before_mlp: Tensor | None
    after_mlp: Tensor | None
    qkv: LinearWeights | LatentParts
    output: LinearWeights
    qk_norm: Tensor | None
    """Weights of the RMS norm of each head of q, then of k: [heads + kv_heads, head_dim]."""
    gate: LinearWeights | None = None
    """Gate of the result of each head, where the family has it."""


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """Float32 tensors of a layer of the gated delta rule, beside its projections."""

    conv: Tensor
    """[kernel, channels]: the newest token last."""
    a_log: Tensor
    """[value_heads], and so is ``dt_bias``."""
    dt_bias: Tensor
    norm: Tensor
    """[value_dim]."""
