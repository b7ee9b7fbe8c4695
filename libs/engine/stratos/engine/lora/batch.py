"""Adapters of one step: tokens grouped by adapter once, then two small matrix products per group and layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stratos.engine.lora.weights import LoraWeights


@dataclass(frozen=True, slots=True)
class LoraGroup:
    """Tokens of a step that use one adapter."""

    weights: LoraWeights
    tokens: Tensor | None
    """Their places in the flat batch, int64; ``None`` when it is every token."""


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """All adapters of a step; tokens of the base model are in no group."""

    groups: tuple[LoraGroup, ...]

    def add(self, fused: str, layer: int, x: Tensor, out: Tensor) -> None:
        """Add each adapter's part into the base output of one fused linear layer, in place.

        Args:
            fused: "qkv", "output", "gate_up" or "down".
            layer: index of the layer.
            x: input [tokens, in_features].
            out: base output [tokens, out_features].
        """
        for group in self.groups:
            part = group.weights.layers.get((fused, layer))
            if part is None:
                continue
            if group.tokens is None:
                part.add_to(x, out)
                continue
            rows = out.index_select(0, group.tokens)
            part.add_to(x.index_select(0, group.tokens), rows)
            out.index_copy_(0, group.tokens, rows)
