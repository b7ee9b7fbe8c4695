"""Operations between the matrix products of a layer: norms and the activation, one contract with several kernels.

``TorchOps`` is the reference.  Other implementations fuse each operation into one pass over memory.  All of them
compute a row from that row alone: a result never depends on which other rows are in the batch.  Rotary embeddings, q/k
norms and the write into the pages are one operation of the attention backend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.checkpoint.families.family import Activation
from stratos.engine.checkpoint.families.options import SWIGLU_SLOPE
from stratos.engine.revisions import revised

LOG2_E = 1.44269504
_POLYNOMIAL = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""Coefficients of 2^f for |f| <= 0.5: the series of exp, relative error below 2e-7."""
GELU_INNER, GELU_CUBIC = 0.79788456, 0.044715
"""Of the tanh form of GELU: ``tanh(GELU_INNER * (x + GELU_CUBIC * x^3))``."""


@dataclass(frozen=True, slots=True)
class MlpGate:
    """How a gated MLP joins its halves."""

    activation: Activation = "silu"
    limit: float = 0.0
    """Where ``clamped-swiglu`` clamps."""


SILU_GATE = MlpGate()


class LayerOps(ABC):
    """Kernels of one device; results have the type of the input."""

    name: str
    libraries: tuple[str, ...] = ("torch",)
    """Same as ``AttentionBackend.libraries``."""
    routing_libraries: tuple[str, ...] = ("torch",)
    """Libraries that choose experts and weight them."""
    is_invariant_by_design = False
    """Same as ``AttentionBackend.is_invariant_by_design``."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * (weight + offset)`` of each row of ``x`` [tokens, hidden]."""

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Add ``x`` into ``residual``, in place, and return the norm of the sum; both [tokens, hidden]."""

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` [tokens, inner] of ``gate_up`` [tokens, 2 * inner]: gate, then up."""

    def gated(self, gate_up: Tensor, gate: MlpGate) -> Tensor:
        """The halves of ``gate_up``, joined as ``gate`` says: [tokens, inner]."""
        return self.silu_mul(gate_up) if gate.activation == "silu" else joined_halves(gate_up, gate)

    def route(self, logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose experts: float32 weights and indices, best first, [tokens, num_chosen] each.

        Args:
            logits: float32 [tokens, experts]; may be overwritten.
            routing: how they are chosen; among equals the lowest index is.
            bias: float32 [experts], on the scores by which experts are chosen and no weight is made.
        """
        scores = sigmoid(logits) if routing.is_sigmoid else torch.softmax(logits, -1)
        key = scores if bias is None else scores + bias
        if routing.num_groups > 1:
            key = key.masked_fill(~_in_best_groups(key, routing), -math.inf)
        chosen = torch.sort(key, dim=-1, descending=True, stable=True).indices[:, : routing.num_chosen]
        weights = scores.gather(1, chosen)
        if routing.norms_chosen:
            weights = weights / _row_sums(weights)
        return weights if routing.scale == 1.0 else weights * routing.scale, chosen

    def sigmoid(self, x: Tensor) -> Tensor:
        """Compute it of float32, element by element."""
        return sigmoid(x)

    def greedy(self, logits: Tensor) -> tuple[list[int], list[bool]]:
        """The most likely token of each row, the lowest id among equals, and whether all logits of the row are finite.

        Args:
            logits: float32 [rows, vocab].

        Returns:
            By row; the token of one that is not finite means nothing.
        """
        return logits.argmax(1).tolist(), torch.isfinite(logits.sum(1)).tolist()


def _in_best_groups(key: Tensor, routing: Routing) -> Tensor:
    """Whether each expert is of one of its token's best groups: bool [tokens, experts]."""
    grouped = key.view(len(key), routing.num_groups, -1)
    best = grouped.topk(routing.num_scoring).values.sum(-1).sort(dim=-1, descending=True, stable=True).indices
    is_best = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=key.device)
    is_best.scatter_(1, best[:, : routing.num_chosen_groups], True)
    return is_best.unsqueeze(-1).expand_as(grouped).flatten(1)


def _row_sums(weights: Tensor) -> Tensor:
    """Sums of rows [tokens, chosen], added in order: [tokens, 1]."""
    total = weights[:, :1]
    for rank in range(1, weights.shape[1]):
        total = total + weights[:, rank : rank + 1]
    return total


class TorchOps(LayerOps):
    """The framework's own kernels; runs on every device."""

    name = revised("torch-ops", "torch")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        if not offset:
            return torch.rms_norm(x, weight.shape, weight, eps)
        return torch.rms_norm(x.float(), weight.shape, weight.float() + offset, eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps, offset)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up


def joined_halves(gate_up: Tensor, gate: MlpGate) -> Tensor:
    """``gate * sigmoid(slope of it) * up`` in float32, as the C++ kernels compute it: [tokens, inner]."""
    x, up = gate_up.float().chunk(2, -1)
    if gate.activation == "clamped-swiglu":
        x, up = x.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit) + 1.0
        exponent = x * (-SWIGLU_SLOPE * LOG2_E)
    elif gate.activation == "gelu-tanh":
        exponent = (x * x * GELU_CUBIC + 1.0) * x * (-2.0 * GELU_INNER * LOG2_E)
    else:
        exponent = x * -LOG2_E
    return (x / (exp2(exponent) + 1.0) * up).to(gate_up.dtype)


def capped(scores: Tensor, cap: float) -> Tensor:
    """``cap * tanh(score / cap)`` of float32 scores, each by itself: bits do not depend on its neighbours."""
    return (1.0 - 2.0 / (exp2(scores * (2.0 * LOG2_E / cap)) + 1.0)) * cap


def sigmoid(x: Tensor) -> Tensor:
    """Sigmoid of float32; on a CPU bits depend on the element alone, torch's on its place as well."""
    return torch.sigmoid(x) if x.is_cuda else 1.0 / (exp2(x * -LOG2_E) + 1.0)


def exp2(x: Tensor) -> Tensor:
    """``2^x`` of float32, bounded to exponents within +-126; bits depend on the element alone."""
    x = x.clamp(-126.0, 126.0)
    whole = x.round()
    fraction = x - whole
    value = torch.full_like(x, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = value * fraction + coefficient
    power = ((whole.nan_to_num_().to(torch.int32) + 127) << 23).view(torch.float32)
    return value * power
