"""Rounding weights to the numbers of a scheme: scales, codes, and the floats that they stand for.

Scales have the type in which the checkpoint stores them, and codes are chosen for the stored scale, so that nothing is
lost between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import INT4_ZERO, LinearScheme

INT4_RANGE = 7.5
"""Of a group's largest weight: half of the 15 steps between -8 and 7."""
INT8_RANGE, FP8_RANGE = 127.0, 448.0
_SHRINKS = tuple(1.0 - 0.05 * step for step in range(11))
"""Shares of the range that are tried where scales are searched."""
Cost = Callable[[Tensor], Tensor]
"""Errors of weights [outputs, inputs] -> what they cost, [outputs, groups]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberGrid:
    """The numbers that weights of a scheme may have."""

    numbers: LinearScheme
    group: int
    """Inputs that share a scale; 0: all."""
    scale_dtype: torch.dtype

    def group_of(self, weight: Tensor) -> int:
        """Inputs of a group of a weight [outputs, inputs]."""
        return self.group or weight.shape[1]

    def plain_scales(self, weight: Tensor) -> Tensor:
        """Scales [outputs, groups] in which the largest weight of a group has the largest number."""
        ranges = {LinearScheme.INT4: INT4_RANGE, LinearScheme.FP8: FP8_RANGE}
        blocks = weight.view(weight.shape[0], -1, self.group_of(weight))
        return self.stored(blocks.abs().amax(-1) / ranges.get(self.numbers, INT8_RANGE))

    def stored(self, scales: Tensor) -> Tensor:
        """Scales as the file holds them, as float32; what is too small for the type, or zero, becomes 1."""
        kept = scales.to(self.scale_dtype).float()
        return torch.where(kept > 0, kept, 1.0)

    def searched_scales(self, weight: Tensor, cost: Cost) -> Tensor:
        """Scales [outputs, groups] of least cost among some that cut the largest weights of a group off."""
        plain = self.plain_scales(weight)
        best, least = plain, torch.full_like(plain, torch.inf)
        for shrink in _SHRINKS:
            scales = self.stored(plain * shrink)
            now = cost(weight - self.floats(weight, scales))
            best = torch.where(now < least, scales, best)
            least = torch.minimum(now, least)
        return best

    def nearest(self, scaled: Tensor) -> Tensor:
        """Nearest numbers of weights that are divided by their scales, as float32."""
        if self.numbers == LinearScheme.FP8:
            return scaled.clamp(-FP8_RANGE, FP8_RANGE).to(torch.float8_e4m3fn).float()
        if self.numbers == LinearScheme.INT4:
            return scaled.round().clamp_(-INT4_ZERO, INT4_ZERO - 1)
        return scaled.round().clamp_(-INT8_RANGE, INT8_RANGE)

    def floats(self, weight: Tensor, scales: Tensor) -> Tensor:
        """The nearest floats that a weight can become: float32 [outputs, inputs]."""
        spread = self.spread(scales, weight)
        return self.nearest(weight / spread) * spread

    def spread(self, scales: Tensor, weight: Tensor) -> Tensor:
        """Scales [outputs, groups] for each weight."""
        return scales.repeat_interleave(self.group_of(weight), 1)

    def rounded(self, weight: Tensor, scales: Tensor) -> QuantisedWeight:
        """Codes of a weight: of each the nearest number."""
        return self.coded(self.nearest(weight / self.spread(scales, weight)), scales)

    def coded(self, numbers: Tensor, scales: Tensor) -> QuantisedWeight:
        """Codes of numbers of the scheme, float32 [outputs, inputs]."""
        if self.numbers == LinearScheme.FP8:
            codes = numbers.to(torch.float8_e4m3fn).view(torch.uint8)
        elif self.numbers == LinearScheme.INT4:
            codes = (numbers + INT4_ZERO).to(torch.uint8)
        else:
            codes = numbers.to(torch.int8).view(torch.uint8)
        return QuantisedWeight(scheme=self.numbers, codes=codes, scales=scales)
