"""Weights as codes of a few bits with scales: what every reader of a quantised format gives, and the kernels take.

An element is ``(code - zero) * scale`` for integers, or the e4m3, e2m1 or NF4 number of the code times the scale.  A
scale belongs to ``group`` consecutive inputs of one output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.weight_schemes import E2M1, EXPONENT_BIAS, INT4_ZERO, NF4, LinearScheme

SUPER_BLOCK, STEP, Q6_ZERO = 256, 32, 32
BYTE_STEP = 1 / 127
"""Share of the largest size that a code of ``LLM_INT8`` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """The weight of one linear layer."""

    scheme: LinearScheme
    codes: Tensor
    """uint8 [outputs, inputs]: the byte of an int8 or e4m3 number, or 0 to 15."""
    scales: Tensor
    """float32 [outputs, groups]; of ``LLM_INT8`` the sizes that 127 stands for."""
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

    @property
    def factors(self) -> Tensor:
        """Factors of the codes, float32 [outputs, groups]."""
        return self.scales * BYTE_STEP if self.scheme == LinearScheme.LLM_INT8 else self.scales

    def floats(self) -> Tensor:
        """Floats that the codes stand for, float32 [outputs, inputs]: the reference of the kernels."""
        if self.scheme == LinearScheme.FP8:
            numbers = self.codes.view(torch.float8_e4m3fn).float()
        elif self.scheme == LinearScheme.MXFP4:
            numbers = torch.tensor(E2M1)[self.codes.int()]
        elif self.scheme == LinearScheme.NF4:
            numbers = torch.tensor(NF4)[self.codes.int()]
        elif self.scheme == LinearScheme.INT4:
            zeros = torch.tensor(INT4_ZERO) if self.zeros is None else self._spread(self.zeros)
            numbers = (self.codes.int() - zeros.int()).float()
        else:
            numbers = self.codes.view(torch.int8).float()
        floats = numbers * self._spread(self.scales)
        if self.scheme == LinearScheme.LLM_INT8:
            floats = floats * BYTE_STEP
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedWeight:
    """The weight of one linear layer, or of some of its outputs, whose scales have scales: K-quants, and NVFP4.

    Q4_K, Q5_K   code * (d * scale) - dmin * minimum    a scale and a minimum for 32 inputs, d and dmin for 256
    Q6_K         (code - 32) * (d * scale)              a scale with a sign for 16 inputs, d for 256
    NVFP4        number * (d * scale)                   an e4m3 scale for 16 inputs, d for an output
    """

    scheme: LinearScheme
    """``Q4_K``, ``Q5_K``, ``Q6_K`` or ``NVFP4``."""
    codes: Tensor
    """uint8 [outputs, inputs]: 0 to 15, 31 or 63."""
    parts: Tensor
    """uint8 [outputs, inputs / 32, 2]: scale and minimum, or the bytes of two signed or e4m3 scales."""
    wholes: Tensor
    """float32 [outputs, inputs / 256, 2 or 1]: d and dmin, or d; of ``NVFP4`` [outputs, 1, 1]."""
    divisors: Tensor | None = None
    """float32 [outputs], where the format divides its scales by a number; ``wholes`` is their inverse then."""

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.codes.shape[0], self.codes.shape[1]

    def floats(self) -> Tensor:
        """Numbers of the codes, float32 [outputs, inputs], in the format's arithmetic: the kernels' reference."""
        if self.scheme == LinearScheme.NVFP4:
            return self._nvfp4_floats()
        wholes = self.wholes.repeat_interleave(SUPER_BLOCK // STEP, dim=1)
        if self.scheme == LinearScheme.Q6_K:
            scales = (wholes * self.parts.view(torch.int8).float()).flatten(1)
            return (self.codes.float() - Q6_ZERO) * scales.repeat_interleave(STEP // 2, dim=1)
        scales, minima = (wholes * self.parts.float()).repeat_interleave(STEP, dim=1).unbind(-1)
        return self.codes.float() * scales - minima

    def _nvfp4_floats(self) -> Tensor:
        parts = self.parts.view(torch.float8_e4m3fn).float()
        scales = parts * self.wholes if self.divisors is None else parts / self.divisors.view(-1, 1, 1)
        return torch.tensor(E2M1)[self.codes.int()] * scales.flatten(1).repeat_interleave(STEP // 2, dim=1)

    @staticmethod
    def joined(parts: list[NestedWeight]) -> NestedWeight:
        """One weight of several of one scheme that have the same inputs."""
        divisors = [part.divisors for part in parts if part.divisors is not None]
        assert len(divisors) in (0, len(parts))
        return NestedWeight(
            scheme=parts[0].scheme,
            codes=torch.cat([part.codes for part in parts]),
            parts=torch.cat([part.parts for part in parts]),
            wholes=torch.cat([part.wholes for part in parts]),
            divisors=torch.cat(divisors) if divisors else None,
        )
