"""The gated MLP: a dense layer's, and each expert's."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from stratos.engine.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(silu(gate(x)) * up(x))``, gate and up in one product."""

    gate_up: Linear
    """[tokens, hidden] -> [tokens, 2 * inner]: gate, then up."""
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [tokens, hidden]."""
        return self.down(self.activated(self.gate_up(x)))

    @staticmethod
    def activated(gate_up: Tensor) -> Tensor:
        """Input of ``down`` [tokens, inner]."""
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up
