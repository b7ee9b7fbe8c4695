"""Linear layers on a GPU of which a row's result depends on that row alone; importing this needs Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.revisions import revised
from stratos.engine.triton_kernels import linear


class TritonLinear:
    """``x @ weight.T + bias`` by one program shape for every number of rows."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear.linear(x.contiguous(), self.weight, self.bias)


class TritonLinearFactory(LinearFactory):
    """Builds every linear layer of one model so that results depend on neither batch nor chunk."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype, enable_prepacked_gemm=False)
        self.kernel_name, self.libraries = revised("triton-products", "triton-gemm"), ("triton",)
        self.is_invariant_by_design = True

    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return TritonLinear(weight, bias)

    def plain(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return TritonLinear(weight, bias)
