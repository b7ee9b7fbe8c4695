"""Mixture of experts: a router chooses a few gated MLPs per token, and their results are added up by its weights.

Steps: router logits -> scores in float32, a softmax over all experts or sigmoids -> the best ``num_chosen`` (ties go to
the lowest index) -> tokens grouped by expert -> one gate/up and one down product per expert that has tokens -> weighted
sum per token, in the order of its choice -> the shared expert's result.  A token's result therefore does not depend on
where the other tokens of the batch are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.layers.linear import Linear
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.revisions import revised


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The experts of one layer and their router."""

    router: Linear
    experts: tuple[GatedMlp, ...]
    routing: Routing
    selection_bias: Tensor | None = None
    """float32 [experts], on the scores by which experts are chosen and no weight is made."""
    shared: GatedMlp | None = None
    """Every token goes through it."""
    shared_gate: Linear | None = None
    """[1, hidden]: its result counts by the sigmoid of this product."""
    grouped: Callable[[Tensor, Tensor, Tensor, int], Tensor] | None = None
    """All experts at once (``GroupedExperts``); ``None``: one after the other, by counts that the host reads."""

    @property
    def num_chosen(self) -> int:
        """Experts per token."""
        return self.routing.num_chosen

    @property
    def name(self) -> str:
        """Part of the numerics id, where neither torch's own functions nor the kernels compute the routing."""
        has_sum = self.routing.norms_chosen and self.num_chosen > 2
        is_own = self.routing.is_sigmoid or self.shared_gate is not None or has_sum
        return revised("routing", "experts") if is_own and self.experts[0].ops.routing_libraries else ""

    @property
    def all_mlps(self) -> tuple[GatedMlp, ...]:
        """Experts, and the shared one behind them."""
        return self.experts if self.shared is None else (*self.experts, self.shared)

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
        return (total if self.shared is None else total + self._shared(self.shared, x)).to(x.dtype)

    def _shared(self, mlp: GatedMlp, x: Tensor) -> Tensor:
        result = mlp(x)
        return result if self.shared_gate is None else result * mlp.ops.sigmoid(self.shared_gate(x).float())

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
        return self.experts[0].ops.route(self.router(x).float(), self.routing, self.selection_bias)
