"""Weights as codes of a few bits with scales: what every reader of a quantised format gives, and the kernels take.

An element is ``(code - zero) * scale`` for integers, or the e4m3 or e2m1 number of the code times the scale.  A scale
belongs to ``group`` consecutive inputs of one output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.weight_schemes import E2M1, EXPONENT_BIAS, INT4_ZERO, LinearScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """The weight of one linear layer."""

    scheme: LinearScheme
    codes: Tensor
    """uint8 [outputs, inputs]: the byte of an int8 or e4m3 number, or 0 to 15."""
    scales: Tensor
    """float32 [outputs, groups]."""
    zeros: Tensor | None = None
    """uint8 [outputs, groups], of ``INT4`` alone, 0 to 16; ``None``: ``INT4_ZERO``."""
    order: Tensor | None = None
    """int64 [inputs], the input that each column of ``codes`` is for, where groups are no runs of inputs (desc_act)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def floats(self) -> Tensor:
        """Floats that the codes stand for, float32 [outputs, inputs]: the reference of the kernels."""
        if self.scheme == LinearScheme.FP8:
            numbers = self.codes.view(torch.float8_e4m3fn).float()
        elif self.scheme == LinearScheme.MXFP4:
            numbers = torch.tensor(E2M1)[self.codes.int()]
        elif self.scheme == LinearScheme.INT4:
            zeros = torch.tensor(INT4_ZERO) if self.zeros is None else self._spread(self.zeros)
            numbers = (self.codes.int() - zeros.int()).float()
        else:
            numbers = self.codes.view(torch.int8).float()
        floats = numbers * self._spread(self.scales)
        if self.order is None:
            return floats
        placed = torch.empty_like(floats)
        placed[:, self.order] = floats
        return placed

    def _spread(self, of_groups: Tensor) -> Tensor:
        return of_groups.repeat_interleave(self.group, dim=1)


def mxfp4_weight(blocks: Tensor, exponents: Tensor) -> QuantisedWeight:
    """A weight of MXFP4.

    Args:
        blocks: uint8 [outputs, inputs / 2], two codes each, the first input lowest.
        exponents: uint8 [outputs, inputs / 32], of the scales, with the bias added; none is NaN.
    """
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - EXPONENT_BIAS)
    return QuantisedWeight(scheme=LinearScheme.MXFP4, codes=codes, scales=scales)


def fused(parts: list[QuantisedWeight]) -> QuantisedWeight:
    """One weight of several that have the same inputs, scheme, group and order."""
    first = parts[0]
    assert all((part.scheme, part.group) == (first.scheme, first.group) and has_order(part, first) for part in parts)
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([_zeros(part) for part in parts])
    return QuantisedWeight(
        scheme=first.scheme,
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=zeros,
        order=first.order,
    )


def has_order(weight: QuantisedWeight, other: QuantisedWeight) -> bool:
    """Two weights take their inputs in the same order."""
    if weight.order is None or other.order is None:
        return weight.order is other.order
    return torch.equal(weight.order, other.order)


def _zeros(part: QuantisedWeight) -> Tensor:
    return torch.full_like(part.scales, INT4_ZERO, dtype=torch.uint8) if part.zeros is None else part.zeros
