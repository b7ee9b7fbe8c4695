"""The attention contract: rotate q and k, write this step's KV into the pages, then attend over the pages.

A backend is bound to one KV pool.  ``prepare`` turns the rows of a step into the index tensors that the kernel
wants, once; ``forward`` runs per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from stratos.engine.attention.projections import QkNorm
from stratos.engine.layers.rotary import RopeRows

BlockTable = tuple[int, ...] | np.ndarray
"""Block ids of a sequence from its first position on."""


@dataclass(slots=True)
class RowSpan:
    """Where one row lies in the flat batch, and its context in the pages."""

    begin: int
    """First token of the row in the flat batch."""
    num_tokens: int
    start: int
    """Absolute position of the first token."""
    block_table: BlockTable

    @property
    def context(self) -> int:
        """Tokens that the last token of the row sees, itself included."""
        return self.start + self.num_tokens


class AttentionBackend(ABC):
    """One kernel over one KV pool."""

    name: str
    """Name in the numerics id, with the revision of the kernel."""
    libraries: tuple[str, ...] = ("torch",)
    """Libraries that compute a part of the result; their versions are part of the numerics id."""
    is_invariant_by_design = False
    """A row's bits depend on neither the other rows nor the number of threads, and no processor or shape changes that:
    every sum has one order, written down in the kernel. A library's kernel never is, even where it happens to be."""

    @abstractmethod
    def prepare(self, rows: list[RowSpan]) -> Any:
        """Build the metadata of a step; valid for all layers of that step."""

    @abstractmethod
    def forward(self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: Any) -> Tensor:
        """Norm and rotate q and k, write k and v into the pages, attend causally over each row's context.

        A token sees its whole context, or the last ``window`` tokens of it, itself included, where the layer has one.
        Values of k and v that are not finite are stored as 0. The token's own result is NaN then, or ``cut`` names it:
        what reads its KV would be wrong, so its request must end.

        Args:
            layer: index of the layer.
            qkv: [tokens, (heads + 2 * kv_heads) * head_dim], contiguous, as projected; may be overwritten.
            rope: factors of the tokens.
            qk_norm: norm of q and k before the rotation, where the family has one.
            metadata: from ``prepare``.

        Returns:
            [tokens, heads * head_dim].
        """

    def cut(self, metadata: Any) -> Tensor | None:
        """Bool [tokens] of a step: K or V of a layer was not finite; ``None`` where results of ``forward`` say so."""
        return None
