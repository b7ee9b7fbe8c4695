"""StreamingLLM by the C++ kernel: the rule of ``sinks``, its second rotation and the common softmax included."""

from __future__ import annotations

import torch

from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, NativeStep
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.attention.sinks import CachePlaces
from stratos.engine.memory.kv_codes import with_codes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native.library import NativeLibrary
from stratos.engine.revisions import revised


class NativeSinkAttention(NativePagedAttention):
    """Attention over sinks and a window; every layer alike.

    Args:
        library: the compiled kernels.
        pages: the KV pool.
        num_heads: query heads.
        places: sinks, window, and the rotation of queries at their places in the cache.
        dtype: what is computed; given where pages hold codes.
        scores: what the model does with scores; only their scale may be special.
    """

    def __init__(
        self,
        library: NativeLibrary,
        pages: KvPages,
        num_heads: int,
        places: CachePlaces,
        dtype: torch.dtype | None = None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> None:
        assert scores.is_plain
        super().__init__(library, pages, num_heads, (places.window,) * pages.geometry.num_layers, dtype, scores)
        self.name = with_codes(revised("native-attention", f"native-{library.isa}-sinks"), pages.codes)
        self._places, self._query_dtype = places, dtype or pages.tensor.dtype

    def unplanned(self, rows: list[RowSpan]) -> NativeStep:
        step, rope = super().unplanned(rows), self._places.rope(rows)
        if rope is not None:
            # queries of one layer, rotated for sinks: each layer writes them before it reads them
            placed = torch.empty(rope.cos.shape[0], self._num_heads * self._head_dim, dtype=self._query_dtype)
            step.arguments.placed_cos, step.arguments.placed_sin = rope.cos.data_ptr(), rope.sin.data_ptr()
            step.arguments.placed, step.arguments.first_tokens = placed.data_ptr(), self._places.num_sinks
            step.buffers = (*step.buffers, rope.cos, rope.sin, placed)
        return step
