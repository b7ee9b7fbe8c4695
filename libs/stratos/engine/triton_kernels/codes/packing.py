"""Layouts of codes in a GPU's memory: what the kernels of this folder read.

codes     8 bits: bytes [outputs, inputs]; 4 bits: [outputs, inputs / 2], the first input of two lowest
scales    float32 [groups, outputs]; of MXFP4 the bytes of exponents; of NVFP4 those of whole outputs
parts     uint8: zeros of INT4 [groups, outputs], or the e4m3 scales of NVFP4 [outputs, inputs / 16]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import BYTE_ROWS, EXPONENT_BIAS, NF4, LinearScheme

FOUR_BITS = (LinearScheme.INT4, LinearScheme.MXFP4, LinearScheme.NF4, LinearScheme.NVFP4)
SCHEMES = (*FOUR_BITS, LinearScheme.INT8, LinearScheme.FP8, *BYTE_ROWS)
"""Schemes that have a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCodes:
    """The weight of one linear layer on its device."""

    scheme: LinearScheme
    shape: tuple[int, int]
    """(outputs, inputs)."""
    group: int
    """Inputs that share a scale; 0: all of them."""
    codes: Tensor
    scales: Tensor
    parts: Tensor | None
    table: Tensor | None
    """NF4's numbers [16] in the type of the rows."""

    @property
    def nbytes(self) -> int:
        """Memory of codes, scales and zeros."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.parts) if part is not None)

    @property
    def variant(self) -> tuple[object, ...]:
        """Equal for weights that one compiled kernel may read."""
        return self.scheme, self.group, self.parts is None, self.shape


def packed(weight: QuantisedWeight | NestedWeight, device: torch.device, dtype: torch.dtype) -> PackedCodes:
    """A weight in its layout, for rows of ``dtype``; an order of its inputs is the caller's affair.

    Raises:
        InvalidCheckpoint: its scheme has no product on a GPU.
    """
    if weight.scheme not in SCHEMES:
        raise InvalidCheckpoint(f"weights in {weight.scheme.label} have no product on a GPU")
    codes = weight.codes
    if weight.scheme in FOUR_BITS:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    elif weight.scheme != LinearScheme.FP8:
        codes = codes.view(torch.int8)
    parts: Tensor | None = None
    if isinstance(weight, NestedWeight):
        scales, parts, group = weight.wholes.view(1, -1), weight.parts.flatten(1), 0
    else:
        scales, group = weight.factors.T, 0 if weight.scales.shape[1] == 1 else weight.group
        if weight.zeros is not None:
            parts = weight.zeros.T
    if weight.scheme == LinearScheme.MXFP4:
        scales = _exponents(scales)
    return PackedCodes(
        scheme=weight.scheme,
        shape=weight.shape,
        group=group,
        codes=_placed(codes, device),
        scales=_placed(scales, device),
        parts=None if parts is None else _placed(parts, device),
        table=torch.tensor(NF4).to(device, dtype) if weight.scheme == LinearScheme.NF4 else None,
    )


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.contiguous().to(device)


def _exponents(scales: Tensor) -> Tensor:
    """Bytes of scales that are powers of two."""
    return (torch.frexp(scales).exponent - 1 + EXPONENT_BIAS).to(torch.uint8)
