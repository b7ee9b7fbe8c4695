"""Adapters of one step: two small matrix products per adapter and layer, on the adapter's tokens alone.

The rows of a step are laid out sorted by adapter, once (``sorted_by_adapter``), so that an adapter's tokens are one
slice of the batch and every layer works on views.  Without sorting each layer gathers and scatters them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from stratos.engine.contract.plan import StepPlan
from stratos.engine.lora.weights import LoraWeights


class StepLora(Protocol):
    """The adapters of one step, as the decoder sees them."""

    def add(self, fused: str, layer: int, x: Tensor, out: Tensor) -> None:
        """Add each adapter's part into the base output of one fused linear layer, in place.

        Args:
            fused: "qkv", "output", "gate_up" or "down".
            layer: index of the layer.
            x: input [tokens, in_features].
            out: base output [tokens, out_features].
        """


@dataclass(frozen=True, slots=True)
class LoraGroup:
    """Tokens of a step that use one adapter."""

    weights: LoraWeights
    tokens: slice | Tensor
    """Their places in the flat batch: a slice, or int64 indices."""


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """All adapters of a step; tokens of the base model are in no group."""

    groups: tuple[LoraGroup, ...]

    def add(self, fused: str, layer: int, x: Tensor, out: Tensor) -> None:
        """Add the adapters' products to ``out``."""
        for group in self.groups:
            part = group.weights.layers.get((fused, layer))
            if part is None:
                continue
            if isinstance(group.tokens, slice):
                part.add_to(x[group.tokens], out[group.tokens])
                continue
            rows = out.index_select(0, group.tokens)
            part.add_to(x.index_select(0, group.tokens), rows)
            out.index_copy_(0, group.tokens, rows)


def sorted_by_adapter(plan: StepPlan) -> StepPlan:
    """The plan with its rows sorted by adapter, the base model's first; rows of one adapter keep their order."""
    if len({row.adapter_digest for row in plan.rows}) <= 1:
        return plan
    return dataclasses.replace(plan, rows=tuple(sorted(plan.rows, key=lambda row: row.adapter_digest)))
