"""StreamingLLM by the C++ kernel: the rule of ``sinks``, its second rotation and the common softmax included."""

from __future__ import annotations

import torch

from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, NativeStep
from stratos.engine.attention.sinks import SinkTerms
from stratos.engine.memory.kv_codes import with_codes
from stratos.engine.native.library import NativeLibrary
from stratos.engine.revisions import revised


class NativeSinkAttention(NativePagedAttention):
    """Attention over sinks and a window by ``library``, the compiled kernels."""

    can_move = False  # rotations of queries are laid out for their positions

    def __init__(self, library: NativeLibrary, terms: SinkTerms) -> None:
        super().__init__(library, terms.pages, terms.num_heads, terms.windows, terms.dtype, terms.scores)
        self.name = with_codes(revised("native-attention", f"native-{library.isa}-sinks"), terms.pages.codes)
        self._places, self._query_dtype = terms.places, terms.dtype or terms.pages.tensor.dtype

    def unplanned(self, rows: list[RowSpan]) -> NativeStep:
        step, rope = super().unplanned(rows), self._places.rope(rows)
        if rope is not None:
            # queries of one layer, rotated for sinks: each layer writes them before it reads them
            placed = torch.empty(rope.cos.shape[0], self._num_heads * self._head_dim, dtype=self._query_dtype)
            step.arguments.placed_cos, step.arguments.placed_sin = rope.cos.data_ptr(), rope.sin.data_ptr()
            step.arguments.placed, step.arguments.first_tokens = placed.data_ptr(), self._places.num_sinks
            step.buffers = (*step.buffers, rope.cos, rope.sin, placed)
        return step
