"""Weights of a layer as they are read, before the decoder makes products of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight

AnyWeight = Tensor | QuantisedWeight | NestedWeight


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Weight [out_features, in_features] and bias [out_features] of one (fused) linear layer."""

    weight: AnyWeight | tuple[AnyWeight, ...]
    """Several: those of one product whose layers are stored by different schemes, one behind the other."""
    bias: Tensor | None


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
