"""Layer operations as Triton kernels; importing this needs Triton."""

from __future__ import annotations

from torch import Tensor

from stratos.engine.layers.ops import LayerOps
from stratos.engine.triton_kernels import norms


class TritonOps(LayerOps):
    """One pass over memory per operation, on a GPU."""

    name = "triton"
    is_invariant_by_design = True

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x.contiguous(), weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x.contiguous(), weight, eps, residual)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return norms.silu_mul(gate_up.contiguous())
