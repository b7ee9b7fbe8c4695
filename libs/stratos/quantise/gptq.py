"""GPTQ: weights are rounded input by input, and the error of each is made good by those that are still to come.

Inputs are taken by their size, the largest first, while groups keep their place and their scales, which are chosen
before (``actorder: static``): readers need no order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.common.errors import BadRequest
from stratos.quantise.grid import NumberGrid

DAMPING = 0.01
"""Share of the mean square of inputs that is added to each."""
MAX_DAMPING = 10.0
BLOCK = 128
"""Inputs between two products with all that follow."""


def gptq_numbers(weight: Tensor, scales: Tensor, gram: Tensor, grid: NumberGrid) -> Tensor:
    """Numbers of a weight on its grid, float32 [outputs, inputs].

    Args:
        weight: [outputs, inputs], not changed.
        scales: [outputs, groups].
        gram: of its inputs, not changed.
        grid: of the scheme.

    Raises:
        BadRequest: the inputs are too alike for their matrix to be inverted.
    """
    order = torch.argsort(gram.diagonal(), descending=True, stable=True)
    factor = _inverse_factor(gram[order][:, order])
    rest, spread = weight[:, order].clone(), grid.spread(scales, weight)[:, order]
    numbers = torch.empty_like(rest)
    for begin in range(0, rest.shape[1], BLOCK):
        end = min(begin + BLOCK, rest.shape[1])
        errors = torch.empty(rest.shape[0], end - begin)
        for place in range(begin, end):
            numbers[:, place] = grid.nearest(rest[:, place] / spread[:, place])
            error = (rest[:, place] - numbers[:, place] * spread[:, place]) / factor[place, place]
            rest[:, place:end] -= torch.outer(error, factor[place, place:end])
            errors[:, place - begin] = error
        rest[:, end:] -= errors @ factor[begin:end, end:]
    found = torch.empty_like(numbers)
    found[:, order] = numbers
    return found


def _inverse_factor(gram: Tensor) -> Tensor:
    """Upper Cholesky factor of the inverse; inputs that are always zero count as the damping alone."""
    mean, damping = float(gram.diagonal().mean()), DAMPING
    while damping <= MAX_DAMPING:
        damped = gram + torch.eye(len(gram)) * (damping * mean if mean else 1.0)
        lower, is_bad = torch.linalg.cholesky_ex(damped)
        if not int(is_bad):
            upper: Tensor
            upper, is_bad = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(is_bad):
                return upper
        damping *= 10
    raise BadRequest("the inputs of a layer are too alike for GPTQ; give more calibration text", param="--calibration")
