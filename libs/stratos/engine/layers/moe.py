"""Mixture of experts: a router chooses a few gated MLPs per token, and their results are added up by its weights.

Steps: router logits -> softmax in float32 over all experts -> the best ``num_chosen`` (ties go to the lowest index) ->
tokens grouped by expert -> one gate/up and one down product per expert that has tokens -> weighted sum per token, in
the order of its choice.  A token's result therefore does not depend on where the other tokens of the batch are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.layers.linear import Linear
from stratos.engine.layers.mlp import GatedMlp


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The experts of one layer and their router."""

    router: Linear
    experts: tuple[GatedMlp, ...]
    num_chosen: int
    norms_chosen: bool
    grouped: Callable[[Tensor, Tensor, Tensor, int], Tensor] | None = None
    """All experts at once (``GroupedExperts``); ``None``: one after the other, by counts that the host reads."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [tokens, hidden]."""
        weights, chosen = self.route(x)
        pairs = chosen.flatten()
        order = torch.argsort(pairs, stable=True)
        if self.grouped is None:
            outputs = self._one_by_one(x, pairs, order)
        else:
            outputs = self.grouped(x, pairs, order, self.num_chosen)
        by_choice = torch.empty_like(outputs).index_copy_(0, order, outputs).view(*chosen.shape, -1)
        total = by_choice[:, 0] * weights[:, :1]
        for rank in range(1, self.num_chosen):
            total += by_choice[:, rank] * weights[:, rank : rank + 1]
        return total.to(x.dtype)

    def _one_by_one(self, x: Tensor, pairs: Tensor, order: Tensor) -> Tensor:
        """Results of all pairs of a token and an expert, [pairs, hidden] sorted by expert."""
        counts = torch.bincount(pairs, minlength=len(self.experts)).tolist()
        inputs = x.index_select(0, order.div(self.num_chosen, rounding_mode="floor"))
        outputs = torch.empty_like(inputs)
        begin = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                outputs[begin : begin + count] = expert(inputs[begin : begin + count])
                begin += count
        return outputs

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, float32, and indices of the chosen experts, best first: [tokens, num_chosen] each."""
        probabilities = torch.softmax(self.router(x).float(), -1)
        ordered, indices = torch.sort(probabilities, dim=-1, descending=True, stable=True)
        weights, chosen = ordered[:, : self.num_chosen], indices[:, : self.num_chosen]
        return weights / weights.sum(-1, keepdim=True) if self.norms_chosen else weights, chosen
