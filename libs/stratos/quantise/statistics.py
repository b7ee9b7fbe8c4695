"""Statistics of the inputs of a product, over all tokens of the text."""

from __future__ import annotations

import torch
from torch import Tensor


class InputStatistics:
    """Sums over the tokens that a product saw.

    Attributes:
        gram: float32 [inputs, inputs], sum of ``x x^T``: what an error of a weight costs in the results.
        largest: float32 [inputs], largest absolute value.
        total: float32 [inputs], sum of absolute values.
        num_tokens: tokens seen.
    """

    __slots__ = ("gram", "largest", "num_tokens", "total")

    def __init__(self, num_inputs: int) -> None:
        self.gram = torch.zeros(num_inputs, num_inputs)
        self.largest, self.total = torch.zeros(num_inputs), torch.zeros(num_inputs)
        self.num_tokens = 0

    def add(self, x: Tensor) -> None:
        """Count inputs [tokens, inputs] in."""
        self.gram.addmm_(x.T, x)
        size = x.abs()
        torch.maximum(self.largest, size.amax(0), out=self.largest)
        self.total += size.sum(0)
        self.num_tokens += x.shape[0]

    @property
    def mean_size(self) -> Tensor:
        """Mean absolute value of each input."""
        return self.total / max(1, self.num_tokens)

    def divide(self, scales: Tensor) -> None:
        """Every input is divided by its scale from now on."""
        self.gram /= torch.outer(scales, scales)
        self.largest /= scales
        self.total /= scales

    def cost(self, errors: Tensor) -> Tensor:
        """Squared error of the results of each output, summed over tokens: [outputs] of errors of its weights."""
        return ((errors @ self.gram) * errors).sum(1)

    def group_cost(self, errors: Tensor, group: int) -> Tensor:
        """The same of each group of inputs by itself: [outputs, groups]."""
        blocks = errors.view(errors.shape[0], -1, group)
        diagonal = self.gram.view(blocks.shape[1], group, blocks.shape[1], group).diagonal(dim1=0, dim2=2)
        return torch.einsum("ngi,ijg,ngj->ng", blocks, diagonal, blocks)
