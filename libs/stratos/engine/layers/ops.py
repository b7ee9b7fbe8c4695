"""Operations between the matrix products of a layer: norms and the activation, one contract with several kernels.

``TorchOps`` is the reference.  Other implementations fuse each operation into one pass over memory.  All of them
compute a row from that row alone: a result never depends on which other rows are in the batch.  Rotary embeddings, q/k
norms and the write into the pages are one operation of the attention backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.revisions import revised


class LayerOps(ABC):
    """Kernels of one device; results have the type of the input."""

    name: str
    libraries: tuple[str, ...] = ("torch",)
    """Same as ``AttentionBackend.libraries``."""
    is_invariant_by_design = False
    """Same as ``AttentionBackend.is_invariant_by_design``."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` of each row; ``x`` [tokens, hidden], ``weight`` [hidden]."""

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add ``x`` into ``residual``, in place, and return the norm of the sum; both [tokens, hidden]."""

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` [tokens, inner] of ``gate_up`` [tokens, 2 * inner]: gate, then up."""

    def greedy(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely token of each row, the lowest id among equals, and whether all logits of the row are finite.

        Args:
            logits: float32 [rows, vocab].

        Returns:
            int64 [rows], bool [rows]; the token of a row that is not finite means nothing.
        """
        return logits.argmax(1), torch.isfinite(logits.sum(1))


class TorchOps(LayerOps):
    """The framework's own kernels; runs on every device."""

    name = revised("torch-ops", "torch")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return torch.rms_norm(residual, weight.shape, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up
