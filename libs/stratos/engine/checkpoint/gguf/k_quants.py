"""Weights of K-quants as the kernels take them: codes, scales of 32 or 16 inputs, and the scales of those scales.

Q4_K, Q5_K   code * (d * scale) - dmin * minimum    a scale and a minimum for 32 inputs, d and dmin for 256
Q6_K         (code - 32) * (d * scale)              a scale with a sign for 16 inputs, d for 256
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.weight_schemes import LinearScheme

SUPER_BLOCK, STEP, Q6_ZERO = 256, 32, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KQuantWeight:
    """The weight of one linear layer, or of some of its outputs."""

    scheme: LinearScheme
    """``Q4_K``, ``Q5_K`` or ``Q6_K``."""
    codes: Tensor
    """uint8 [outputs, inputs]: 0 to 15, 31 or 63."""
    parts: Tensor
    """uint8 [outputs, inputs / 32, 2]: scale and minimum, or the bytes of two signed scales."""
    wholes: Tensor
    """float32 [outputs, inputs / 256, 2 or 1]: d and dmin, or d."""

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.codes.shape[0], self.codes.shape[1]

    def floats(self) -> Tensor:
        """Floats that the codes stand for, float32 [outputs, inputs], in ggml's arithmetic: the kernels' reference."""
        wholes = self.wholes.repeat_interleave(SUPER_BLOCK // STEP, dim=1)
        if self.scheme == LinearScheme.Q6_K:
            scales = (wholes * self.parts.view(torch.int8).float()).flatten(1)
            return (self.codes.float() - Q6_ZERO) * scales.repeat_interleave(STEP // 2, dim=1)
        scales, minima = (wholes * self.parts.float()).repeat_interleave(STEP, dim=1).unbind(-1)
        return self.codes.float() * scales - minima

    @staticmethod
    def joined(parts: list[KQuantWeight]) -> KQuantWeight:
        """One weight of several of one scheme that have the same inputs."""
        return KQuantWeight(
            scheme=parts[0].scheme,
            codes=torch.cat([part.codes for part in parts]),
            parts=torch.cat([part.parts for part in parts]),
            wholes=torch.cat([part.wholes for part in parts]),
        )
