"""Linear layers on a GPU by Triton's kernels: exact ones of floats, and those of codes; importing this needs Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import BYTE_ROWS
from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.layers.quantised_linear import ReorderedLinear
from stratos.engine.revisions import revised
from stratos.engine.triton_kernels import linear
from stratos.engine.triton_kernels.codes.byte_products import byte_codes_linear
from stratos.engine.triton_kernels.codes.packing import PackedCodes, packed
from stratos.engine.triton_kernels.codes.products import codes_linear


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


class TritonCodes:
    """``x @ weight.T + bias`` of a weight that stays codes; ``is_exact`` as of ``codes_linear``."""

    __slots__ = ("_is_exact", "bias", "weight")

    def __init__(self, weight: PackedCodes, bias: Tensor | None, *, is_exact: bool) -> None:
        self.weight, self.bias, self._is_exact = weight, bias, is_exact

    @property
    def variant(self) -> tuple[object, ...]:
        """Equal for layers whose products the same compiled kernels compute."""
        return (*self.weight.variant, self.bias is None)

    def __call__(self, x: Tensor) -> Tensor:
        product = byte_codes_linear if self.weight.scheme in BYTE_ROWS else codes_linear
        return product(x.contiguous(), self.weight, self.bias, is_exact=self._is_exact)


class TritonCodesFactory:
    """Builds the layers of one model whose weights stay codes; ``LinearFactory.code_products``."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, is_exact: bool) -> None:
        self._device, self._dtype, self._is_exact = device, dtype, is_exact

    def __call__(self, weight: QuantisedWeight | NestedWeight, bias: Tensor | None = None) -> Linear:
        product = TritonCodes(packed(weight, self._device, self._dtype), bias, is_exact=self._is_exact)
        order = weight.order if isinstance(weight, QuantisedWeight) else None
        return product if order is None else ReorderedLinear(product, order.to(self._device))
