"""Scales of the inputs of a product: the weight is multiplied by them, and what computes the inputs is divided.

AWQ searches the power of the inputs' mean size that costs the results least, so that weights of large inputs are
rounded finer.  SmoothQuant moves half of the range of large inputs into the weights, so that a scale per token serves
all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.quantise.grid import NumberGrid
from stratos.quantise.statistics import InputStatistics

NUM_POWERS = 20
"""Powers between 0 and 1 that AWQ tries; 0 leaves the inputs as they are."""
MIGRATION = 0.5
"""Power of the inputs' largest values in SmoothQuant's scales; that of the weights is the rest to one."""
_LEAST = 1e-4


def awq_scales(weight: Tensor, inputs: InputStatistics, grid: NumberGrid, tied: Tensor | None) -> Tensor:
    """Scales [inputs] by which the rounded weight's results are nearest.

    Args:
        weight: [outputs, inputs].
        inputs: their statistics.
        grid: of the scheme.
        tied: int64 [inputs], number of the set of inputs that have one scale; ``None``: each has its own.
    """
    size = _of_sets(inputs.mean_size, tied)
    best, least = torch.ones_like(size), torch.inf
    for power in range(NUM_POWERS):
        scales = size.clamp(min=_LEAST) ** (power / NUM_POWERS)
        scales = scales / (scales.amax() * scales.amin()).sqrt()
        scaled = weight * scales
        errors = weight - grid.floats(scaled, grid.plain_scales(scaled)) / scales
        cost = float(inputs.cost(errors).sum())
        if cost < least:
            best, least = scales, cost
    return best


def smooth_scales(weight: Tensor, inputs: InputStatistics) -> Tensor:
    """Scales [inputs] between the largest values of inputs and weights."""
    sizes = weight.abs().amax(0).clamp(min=_LEAST)
    return (inputs.largest.clamp(min=_LEAST) ** MIGRATION / sizes ** (1 - MIGRATION)).clamp(min=_LEAST)


def _of_sets(size: Tensor, tied: Tensor | None) -> Tensor:
    """Mean of each set, at each of its inputs."""
    if tied is None:
        return size
    num_sets = int(tied.amax()) + 1
    sums = torch.zeros(num_sets).index_add_(0, tied, size)
    return (sums / torch.bincount(tied, minlength=num_sets))[tied]
