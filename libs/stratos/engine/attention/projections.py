"""Head norm and rotation of q, k and v before attention, in torch: the reference of fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.layers.rotary import RopeRows, rotate


@dataclass(frozen=True, slots=True)
class QkNorm:
    """RMS norm of each head of q and k before they are rotated."""

    weight: Tensor
    """[heads + kv_heads, head_dim], the compute type."""
    eps: float
    offset: float = 0.0
    """Added to the weights."""


def rotated_heads(
    qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, num_heads: int, head_dim: int, kv_heads: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm and rotate q and k; ``qkv`` is not changed.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim]: all of q, then k, then v.
        rope: factors of the tokens.
        qk_norm: where the family has one.
        num_heads: query heads.
        head_dim: elements of a head.
        kv_heads: heads of k; 0: half of those that are no query's.

    Returns:
        query [tokens, heads, head_dim], key and value [tokens, kv_heads, head_dim].
    """
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_rotated = num_heads + (kv_heads or (heads.shape[1] - num_heads) // 2)
    unrotated = heads[:, :num_rotated]
    if qk_norm is not None:
        unrotated = _normed(unrotated, qk_norm)
    rotated = rotate(unrotated, rope)
    return rotated[:, :num_heads], rotated[:, num_heads:], heads[:, num_rotated:]


def _normed(heads: Tensor, norm: QkNorm) -> Tensor:
    if not norm.offset:
        return torch.rms_norm(heads, heads.shape[-1:], None, norm.eps) * norm.weight
    normed = torch.rms_norm(heads.float(), heads.shape[-1:], None, norm.eps) * (norm.weight.float() + norm.offset)
    return normed.to(heads.dtype)
