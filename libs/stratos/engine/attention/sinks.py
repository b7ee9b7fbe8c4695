"""StreamingLLM in pure torch: a token sees the first tokens of its sequence, the sinks, and a window that rolls.

The rule (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", section 3.2): the cache holds
``num_sinks`` first tokens and the ``window`` newest ones, and positions are those within the cache, not in the text.  A
key of the window is as far from the query in the cache as in the text, so one rotation by text positions serves both.
A sink is nearer than in the text: for it the query is rotated a second time, at its place in the cache, which is
``min(position, num_sinks + window - 1)``.  Keys are rotated once, when they are written, at their text positions:
those of sinks have the same place in the cache for ever.

Scores of the sinks and of the window go through one softmax.  The pages are read as ``TorchPagedAttention`` reads them.
``native_sinks`` does the same by the C++ kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.paged import DecodeGroup, PagedMetadata, PrefillRow, TorchPagedAttention
from stratos.engine.attention.projections import QkNorm, rotated_heads
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.layers.rotary import RopeRows, StreamingRotary
from stratos.engine.memory.kv_codes import with_codes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.revisions import revised

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class CachePlaces:
    """Sinks and window, and where a query stands in the cache."""

    num_sinks: int
    """Tokens at the beginning that every token sees, at least one."""
    window: int
    """Tokens that a token sees up to itself."""
    rotary: StreamingRotary
    """The model's rotation."""

    def rope(self, rows: list[RowSpan], device: torch.device = _HOST) -> RopeRows | None:
        """The second rotation of a step's queries; ``None`` where no token has left its window yet."""
        if all(row.context <= self.window for row in rows):
            return None
        positions = np.concatenate([np.arange(row.start, row.context) for row in rows])
        places = np.minimum(positions, self.num_sinks + self.window - 1)
        return self.rotary.rows(torch.from_numpy(places).to(device))


@dataclass(frozen=True, slots=True)
class SinkTerms:
    """Terms of attention over sinks and a window, every layer alike, by any kernel."""

    pages: KvPages
    """The KV pool."""
    num_heads: int
    """Query heads."""
    places: CachePlaces
    dtype: torch.dtype | None = None
    """Type of results; given where pages hold codes."""
    scores: ScoreOptions = PLAIN_SCORES
    """Scores as the model has them; only their scale may be special."""

    def __post_init__(self) -> None:
        assert self.scores.is_plain

    @property
    def windows(self) -> tuple[int, ...]:
        """Window of each layer."""
        return (self.places.window,) * self.pages.geometry.num_layers


@dataclass(frozen=True, slots=True)
class SinkDecodeGroup(DecodeGroup):
    """Rows of one token, with their sinks."""

    sink_pages: Tensor
    """Page rows of layer 0, int64 [2, rows, kv_heads, head blocks]."""
    sink_mask: Tensor
    """Additive, [rows, 1, 1, sinks]: hides those that are in the window themselves."""


@dataclass(frozen=True, slots=True)
class SinkPrefillRow(PrefillRow):
    """A row of several tokens, with its sinks."""

    sink_pages: Tensor
    """Page rows of layer 0, int64 [2, 1, kv_heads, head blocks]."""


@dataclass(frozen=True, slots=True)
class SinkMetadata(PagedMetadata):
    """Index tensors of one step, and the second rotation of its queries."""

    rope: RopeRows | None
    """Factors of the places in the cache; ``None``: no token has left its window yet."""


class SinkPagedAttention(TorchPagedAttention):
    """Attention over sinks and a window by torch."""

    def __init__(self, terms: SinkTerms) -> None:
        super().__init__(terms.pages, terms.num_heads, terms.windows, terms.dtype, terms.scores)
        places = terms.places
        kernel = f"torch-sinks-{places.num_sinks}-{places.window}"
        self.name = with_codes(revised("torch-attention", kernel), terms.pages.codes)
        self._places, self._num_sinks, self._window = places, places.num_sinks, places.window

    # -- once per step -------------------------------------------------------------------------------

    def prepare(self, rows: list[RowSpan]) -> SinkMetadata:
        base = super().prepare(rows)
        return SinkMetadata(base.slots, base.views, self._places.rope(rows, self._device))

    def _decode_group(self, rows: list[RowSpan], window: int | None, *, is_all: bool) -> SinkDecodeGroup:
        group = super()._decode_group(rows, window, is_all=is_all)
        if is_all:
            rows = sorted(rows, key=lambda row: row.begin)
        positions = torch.tensor([row.start for row in rows], device=self._device)
        mask = self._sink_mask(positions)[:, None, None, :]
        return SinkDecodeGroup(group.tokens, group.pages, group.length, group.mask, self._sink_pages(rows), mask)

    def _prefill_row(self, row: RowSpan, window: int | None) -> SinkPrefillRow:
        base = super()._prefill_row(row, window)
        return SinkPrefillRow(base.span, base.first, base.window, base.pages, self._sink_pages([row]))

    def _sink_pages(self, rows: list[RowSpan]) -> Tensor:
        return self._pages(rows, [0] * len(rows), self._num_sinks)

    def _sink_mask(self, positions: Tensor) -> Tensor:
        """Additive [tokens, sinks]: hides a sink that is still in the token's window, where it counts as such."""
        sinks = torch.arange(self._num_sinks, device=self._device)
        mask = torch.zeros(len(positions), self._num_sinks, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(sinks > positions[:, None] - self._window, -torch.inf)

    # -- once per layer ------------------------------------------------------------------------------

    def forward(
        self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: PagedMetadata
    ) -> Tensor:
        assert isinstance(metadata, SinkMetadata)
        if metadata.rope is None:
            return super().forward(layer, qkv, rope, qk_norm, metadata)
        query, key, value = rotated_heads(qkv, rope, qk_norm, self._num_heads, self._head_dim)
        placed, _, _ = rotated_heads(qkv, metadata.rope, qk_norm, self._num_heads, self._head_dim)
        is_cut = self._write(layer, metadata.slots, key, value)
        page_rows = self._page_rows[layer * self._layer_rows :]
        view = metadata.views[self._window]
        out = query.new_empty(query.shape[0], self._num_heads * self._head_dim)
        for group in view.decode:
            assert isinstance(group, SinkDecodeGroup)
            tokens = slice(None) if group.tokens is None else group.tokens
            out[tokens] = self._decode_with_sinks(group, query[tokens], placed[tokens], page_rows)
        for row in view.prefill:
            assert isinstance(row, SinkPrefillRow)
            self._prefill_with_sinks(row, query, placed, page_rows, out)
        return out.masked_fill_(is_cut, torch.nan)

    def _sinks(self, pages: Tensor, page_rows: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of sinks, [rows, kv_heads, sinks, head_dim]."""
        run = self._read(page_rows, pages.reshape(-1)).view(*pages.shape[:3], -1, self._head_dim)
        return run[0, :, :, : self._num_sinks], run[1, :, :, : self._num_sinks]

    def _decode_with_sinks(self, group: SinkDecodeGroup, query: Tensor, placed: Tensor, page_rows: Tensor) -> Tensor:
        shape = (query.shape[0], self._kv_heads, -1, self._head_dim)
        queries, placed = query.reshape(shape), placed.reshape(shape)
        sink_key, sink_value = self._sinks(group.sink_pages, page_rows)
        out = torch.empty_like(queries)
        for heads, key, value in self._gathered(group.pages, page_rows):
            scores = queries[:, heads] @ key[:, :, : group.length].transpose(-1, -2) * self._scale
            if group.mask is not None:
                scores = scores + group.mask
            sinks = placed[:, heads] @ sink_key[:, heads].transpose(-1, -2) * self._scale + group.sink_mask
            out[:, heads] = _weighted(sinks, scores, sink_value[:, heads], value[:, :, : group.length])
        return out.view(query.shape[0], -1)

    def _prefill_with_sinks(
        self, row: SinkPrefillRow, query: Tensor, placed: Tensor, page_rows: Tensor, out: Tensor
    ) -> None:
        span, group_size = row.span, self._num_heads // self._kv_heads
        tokens, shape = (
            slice(span.begin, span.begin + span.num_tokens),
            (-1, self._kv_heads, group_size, self._head_dim),
        )
        # [kv_heads, group, tokens, head_dim]
        queries, placed, outs = (t[tokens].view(shape).permute(1, 2, 0, 3) for t in (query, placed, out))
        sink_key, sink_value = (t[0].unsqueeze(1) for t in self._sinks(row.sink_pages, page_rows))
        for heads, key, value in self._gathered(row.pages, page_rows):
            for begin, end in self._tiles(span):
                seen = self._seen(row, begin, end)
                positions = torch.arange(span.start + begin, span.start + end, device=self._device)
                keys = torch.arange(row.first + seen.start, row.first + seen.stop, device=self._device)
                is_hidden = (keys > positions[:, None]) | (keys <= positions[:, None] - self._window)
                scores = queries[heads, :, begin:end] @ key[0, :, seen].unsqueeze(1).transpose(-1, -2) * self._scale
                scores = scores.masked_fill_(is_hidden, -torch.inf)
                sinks = placed[heads, :, begin:end] @ sink_key[heads].transpose(-1, -2) * self._scale
                sinks = sinks + self._sink_mask(positions)
                outs[heads, :, begin:end] = _weighted(sinks, scores, sink_value[heads], value[0, :, seen].unsqueeze(1))


def _weighted(sinks: Tensor, scores: Tensor, sink_value: Tensor, value: Tensor) -> Tensor:
    """One softmax over the scores of sinks and window, and the values that it weights."""
    weights = torch.softmax(torch.cat((sinks, scores), -1), -1, dtype=torch.float32).to(value.dtype)
    num_sinks = sinks.shape[-1]
    return weights[..., :num_sinks] @ sink_value + weights[..., num_sinks:] @ value
