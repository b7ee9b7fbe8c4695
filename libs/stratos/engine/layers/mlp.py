"""The gated MLP: a dense layer's, and each expert's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stratos.engine.layers.linear import Linear
from stratos.engine.layers.ops import SILU_GATE, LayerOps, MlpGate


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(act(gate(x)) * up(x))``, gate and up in one product."""

    gate_up: Linear
    """[tokens, hidden] -> [tokens, 2 * inner]: gate, then up."""
    down: Linear
    ops: LayerOps
    gate: MlpGate = SILU_GATE

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.ops.gated(self.gate_up(x), self.gate))
