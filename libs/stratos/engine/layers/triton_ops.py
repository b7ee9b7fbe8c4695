"""Layer operations as Triton kernels; importing this needs Triton."""

from __future__ import annotations

from torch import Tensor

from stratos.engine.layers.ops import LayerOps
from stratos.engine.revisions import revised
from stratos.engine.triton_kernels import norms


class TritonOps(LayerOps):
    """One pass over memory per operation, on a GPU; ``has_pdl``: launched as ``dependent_launch`` says."""

    name = revised("triton-ops", "triton")
    libraries = ("triton",)
    is_invariant_by_design = True

    def __init__(self, *, has_pdl: bool = False) -> None:
        self._has_pdl = has_pdl

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        return norms.rms_norm(x.contiguous(), _shifted(weight, offset), eps, has_pdl=self._has_pdl)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        return norms.rms_norm(x.contiguous(), _shifted(weight, offset), eps, residual, has_pdl=self._has_pdl)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return norms.silu_mul(gate_up.contiguous(), has_pdl=self._has_pdl)


def _shifted(weight: Tensor, offset: float) -> Tensor:
    """``weight + offset``, in float32 where there is an offset: the kernels compute in it."""
    return weight.float() + offset if offset else weight
