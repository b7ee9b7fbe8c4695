"""Options of a model's scores of attention: scale, cap, and the sinks of heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.layers.ops import capped


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The defaults are Llama's."""

    scale: float | None = None
    """``None``: one over the root of the head's features."""
    cap: float = 0.0
    """Scaled scores are ``cap * tanh(score / cap)``; 0: they are not capped."""
    sinks: Tensor | None = None
    """float32 [layers, heads]: a score of each head that takes its share of the softmax, and has no value."""

    @property
    def is_plain(self) -> bool:
        """Nothing but the scale is special."""
        return not self.cap and self.sinks is None

    def scale_for(self, head_dim: int) -> float:
        """Factor of scores."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, layer: int) -> Tensor:
        """Attention written out, in float32.

        Args:
            query: [..., kv_heads, group, tokens, head_dim].
            key: [..., kv_heads, 1, seen, head_dim]; ``value`` is alike.
            value: see ``key``.
            mask: added to scores, as broad as they or to be broadened.
            layer: whose sinks.

        Returns:
            Like ``query``.
        """
        scores = query.float() @ key.float().transpose(-1, -2) * self.scale_for(query.shape[-1])
        if self.cap:
            scores = capped(scores, self.cap)
        if mask is not None:
            scores = scores + mask
        if self.sinks is not None:
            sinks = self.sinks[layer].view(*query.shape[-4:-2], 1, 1)
            scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1)
        weights = torch.softmax(scores, -1)[..., : key.shape[-2]]
        return (weights @ value.float()).to(query.dtype)


PLAIN_SCORES = ScoreOptions()
