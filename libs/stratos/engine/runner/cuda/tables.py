"""State on the device: per sequence its block table and last token, and the static inputs of decode steps.

The host sends what it alone knows, in one packed copy per step: which rows run, their positions, and the entries of
block tables that changed.  One kernel makes the inputs of it, or some fifteen of torch's.  Tokens that the step before
sampled never travel: a row that continues takes its token from ``last_tokens``.  Attention reads block tables and
contexts through the row of each query block, so nothing is gathered.  Rows from ``capacity`` on belong to padding, one
for each place of the batch: no context, no slot, zeros come out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.context_parts import ITEM_FIELDS, ContextParts
from stratos.engine.attention.triton_paged import TritonMetadata, TritonPagedAttention
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow
from stratos.engine.memory.copies import pack_to_device, to_device
from stratos.engine.runner.cuda.packed_inputs import MAX_VALUES, PackedInputs
from stratos.engine.runner.cuda.sequence_rows import SequenceRows
from stratos.engine.triton_kernels.decode_inputs import NUM_FIELDS, decode_inputs

_NO_ENTRIES = np.zeros(0, dtype=np.int32)


def _entries(fields: np.ndarray, width: int) -> np.ndarray:
    """Places of all new entries in the tables: of rows of 300 entries, row 7's entries 4 and 5 are at 2104 and 2105."""
    places, _, _, firsts, counts, begins = fields
    entries: np.ndarray = np.repeat(places * width + firsts - begins, counts) + np.arange(counts.sum())
    return entries.astype(np.int32)


class DeviceTables:
    """Buffers are allocated once and never move.

    Args:
        capacity: sequences with state, at least twice the rows of a step.
        max_batch: rows of the largest decode step.
        max_blocks: entries of a block table.
        block_size: tokens per KV block.
        device: where they are.
        context_parts: how contexts of decode rows are cut, where that depends on their lengths.
        kept: the host's block tables, which hold every plan before it is filled in here.
        has_kernel: one kernel makes the inputs of a decode step, within the step (``prepare``).
    """

    def __init__(
        self,
        capacity: int,
        max_batch: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
        context_parts: ContextParts | None = None,
        kept: KeptTables | None = None,
        *,
        has_kernel: bool = False,
    ) -> None:
        self._kept = KeptTables() if kept is None else kept
        self._context_parts = context_parts
        self._capacity, self._block_size, self._device = capacity, block_size, device
        self.rows = SequenceRows(capacity)
        self._width = -(-max_blocks // 4) * 4
        num_rows = capacity + max_batch
        self.block_tables = self._int32(num_rows, self._width)
        self._contexts, self._begins = self._int32(num_rows), self._int32(num_rows)
        self._counts = self._int32(num_rows) + 1
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """int64 [rows]: the token sampled last."""
        self._query_blocks, self._slots = self._int32(max_batch, 2), self._int32(max_batch) - 1
        places = torch.arange(max_batch, dtype=torch.int32, device=device)
        self._query_blocks[:, 0] = places + capacity
        self._begins[capacity:] = places
        num_items = 0 if context_parts is None else context_parts.capacity(max_batch)
        self._packed = PackedInputs(max_batch, num_items, device) if has_kernel else None
        self._items = self._int32(num_items, ITEM_FIELDS) if self._packed is None else self._packed.items
        self._places = torch.arange(capacity, num_rows, dtype=torch.int64, device=device)
        self.token_ids = torch.zeros(max_batch, dtype=torch.int64, device=device)
        """int64 [max_batch], of the decode step."""
        self.positions = torch.zeros(max_batch, dtype=torch.int64, device=device)
        """int64 [max_batch]."""

    def _int32(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._device)

    # -- decode steps --------------------------------------------------------------------------------

    def fill(self, rows: Sequence[PlanRow], size: int) -> Tensor:
        """Enqueue the inputs of a decode step of ``size`` rows; those after ``rows`` are padding.

        Returns:
            int64 [size]: the table row of each row; where one kernel makes the inputs, that fills it, too.
        """
        fields = np.zeros((NUM_FIELDS, size), dtype=np.int32)
        fields[0] = np.arange(self._capacity, self._capacity + size)  # padding: rows beyond ``capacity``
        columns, changed, num_changed = [], [_NO_ENTRIES], 0
        for row, place in zip(rows, self.rows.place(row.seq_id for row in rows), strict=True):
            # entries beyond the model's context are never read; written, they would land in the next row of the table
            num_entries = min(row.table_begin + len(row.block_table), self._width)
            first = self.rows.send(place, num_entries)
            columns.append((place, row.token_ids[0], row.start, first, num_entries - first, num_changed))
            # only entries that changed travel: a decode step adds one about every ``block_size`` tokens
            if first < num_entries:
                changed.append(self._kept.of(row.seq_id)[first:num_entries])
                num_changed += num_entries - first
        if columns:
            fields[:, : len(rows)] = np.array(columns, dtype=np.int32).T
        values, contexts = np.concatenate(changed), np.zeros(size, dtype=np.int32)
        contexts[: len(rows)] = fields[2, : len(rows)] + 1
        items = self._cut(fields[0], contexts)
        if self._packed is None:
            return self._place_inputs(rows, fields, contexts, values, items)
        if len(values) > MAX_VALUES:
            self._write_entries(*pack_to_device([_entries(fields, self._width), values], self._device))
            fields[4], values = 0, _NO_ENTRIES
        self._packed.send(items, fields, values)
        return self._places[:size]

    def prepare(self, size: int) -> None:
        """The device's part of ``fill`` where one kernel does it: captured with the step that reads the inputs."""
        if self._packed is not None:
            decode_inputs(
                size,
                self._packed.fields,
                self._packed.values,
                self.last_tokens,
                self.block_tables,
                self._contexts,
                self._begins,
                self._query_blocks,
                self._slots,
                self.positions,
                self.token_ids,
                self._places,
                capacity=self._capacity,
                block_size=self._block_size,
            )

    def _cut(self, places: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """Items of a step, as many as any step of its size may have."""
        if self._context_parts is None:
            return np.zeros((0, ITEM_FIELDS), dtype=np.int32)
        return self._context_parts.items(places, contexts, self._context_parts.capacity(len(places)))

    def _write_entries(self, entries: Tensor, values: Tensor) -> None:
        self.block_tables.view(-1).index_copy_(0, entries.long(), values)

    def _place_inputs(
        self, rows: Sequence[PlanRow], fields: np.ndarray, contexts: np.ndarray, values: np.ndarray, items: np.ndarray
    ) -> Tensor:
        """Work of ``prepare`` by torch: some fifteen small kernels."""
        slots, size = np.full(len(contexts), -1, dtype=np.int32), len(contexts)  # no kernel writes to slot -1
        for token, row in enumerate(rows):
            block, offset = divmod(row.start, self._block_size)
            slots[token] = self._kept.of(row.seq_id)[block] * self._block_size + offset
        inputs = np.stack((*fields[:3], contexts, slots))
        sent, entries, values_, items_ = pack_to_device(
            [inputs, _entries(fields, self._width), values, items], self._device
        )
        if len(values):
            self._write_entries(entries, values_)
        self._items[: len(items)].copy_(items_)
        places, tokens, positions, contexts_, slots_ = sent.unbind(0)
        index = places.long()
        self._contexts.index_copy_(0, index, contexts_)
        self._begins.index_copy_(0, index, torch.arange(size, dtype=torch.int32, device=self._device))
        self._query_blocks[:size, 0].copy_(places)
        self._slots[:size].copy_(slots_)
        self.positions[:size].copy_(positions)
        previous = self.last_tokens.index_select(0, index)
        self.token_ids[:size].copy_(torch.where(tokens == PREVIOUS_TOKEN, previous, tokens.long()))
        return index

    def metadata(self, attention: TritonPagedAttention, size: int) -> TritonMetadata:
        """Attention metadata of decode steps of ``size`` rows: views of the static buffers."""
        return attention.decode_metadata(
            slots=self._slots[:size],
            query_blocks=self._query_blocks[:size],
            query_begins=self._begins,
            query_counts=self._counts,
            contexts=self._contexts,
            block_tables=self.block_tables,
            **({} if self._context_parts is None else {"items": self._items[: self._context_parts.capacity(size)]}),
        )

    # -- tokens --------------------------------------------------------------------------------------

    def rows_of(self, seq_ids: Sequence[int]) -> Tensor:
        """int64 [sequences]: their table rows, given to them where they have none."""
        return to_device(np.array(self.rows.place(seq_ids), dtype=np.int64), self._device)

    def keep_tokens(self, index: Tensor, token_ids: Tensor) -> None:
        """Remember sampled tokens, int64 [rows], for rows that continue with them."""
        self.last_tokens.index_copy_(0, index, token_ids)

    def continue_rows(self, rows: Sequence[PlanRow], ends: Sequence[int], token_ids: Tensor) -> None:
        """Put last tokens in the place of placeholders.

        Args:
            rows: of a plan.
            ends: place of each row's last token in the flat batch.
            token_ids: int64 [tokens], changed in place.
        """
        pairs = [(end, row.seq_id) for row, end in zip(rows, ends, strict=True) if row.continues]
        if pairs:
            places = to_device(np.array([end for end, _ in pairs], dtype=np.int64), self._device)
            previous = self.last_tokens.index_select(0, self.rows_of([seq_id for _, seq_id in pairs]))
            token_ids.index_copy_(0, places, previous)

    def note_changes(self, rows: Sequence[PlanRow]) -> None:
        """A plan was applied to the host's tables, whatever kind of step it is."""
        for row in rows:
            if row.block_table:
                self.rows.changed(row.seq_id, row.table_begin)

    def forget_tables(self) -> None:
        """After a step that broke off: the next step sends every block table in full."""
        self.rows.forget_tables()
