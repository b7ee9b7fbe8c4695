"""Turns a plan into the tensors of one forward pass, once per step: numpy on the host, then one copy each.

While the rows of a step are those of the step before, each one token further, a CPU keeps what it laid out for them
(``KeptInputs``): it sets token ids, adds one to positions, and takes over the tables that have grown.

Rows that cannot run (a token outside of the vocabulary, a position beyond the context, an adapter that is not loaded)
are reported, and run harmlessly with token 0 and the base model, so that the rest of the batch is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import RowSpan
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import ADAPTER_GONE, NO_SUCH_ID, PREVIOUS_TOKEN, PlanRow, SampleSpec, StepPlan
from stratos.engine.contract.states import StateRow
from stratos.engine.lora.batch import LoraBatch, LoraGroup
from stratos.engine.lora.weights import LoraWeights
from stratos.engine.memory.copies import to_device

FindAdapter = Callable[[str], LoraWeights | None]


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """Inputs of one forward pass over T tokens; valid until the next step is laid out."""

    token_ids: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T], absolute."""
    spans: list[RowSpan]
    lora: LoraBatch | None
    sampled_tokens: Tensor | None
    """Places of the tokens whose logits are needed; ``None`` when it is every token, in order."""
    sampled_rows: list[tuple[int, SampleSpec]]
    """(seq_id, how to sample) in the order of ``sampled_tokens``."""
    errors: dict[int, str]
    states: list[StateRow | None] = field(default_factory=list)
    """Slots of the rows' states, where the model has some."""
    has_drafts: bool = False
    num_moves: int = 0
    """Steps that they have been kept for; their rows are of one sampled token each then, and without errors."""
    grown: list[int] = field(default_factory=list)
    """Rows whose block table is another one than in the step before, where they were kept."""
    is_plain: bool = False
    """Every row wants the best token and nothing else, as far as it is known."""


def build_step_inputs(
    plan: StepPlan,
    vocab_size: int,
    max_model_len: int,
    find_adapter: FindAdapter,
    device: torch.device,
    tables: KeptTables,
    previous: Mapping[int, int] = MappingProxyType({}),
) -> StepInputs:
    """Lay the rows of a plan out flat, in plan order.

    Args:
        plan: applied to ``tables``.
        vocab_size: tokens outside of it are reported.
        max_model_len: positions beyond it are reported.
        find_adapter: by digest.
        device: of the tensors.
        tables: of the plan's sequences; spans view them.
        previous: tokens that the plan before sampled, by seq_id.
    """
    errors: dict[int, str] = {}
    spans, begin = [], 0
    # rows of 3, 1 and 2 tokens lie at 0, 3 and 4 of the flat batch; their last tokens at 2, 3 and 5
    for row in plan.rows:
        spans.append(RowSpan(begin, len(row.token_ids), row.start, tables.of(row.seq_id)))
        begin += len(row.token_ids)
    token_ids = np.fromiter((t for row in plan.rows for t in row.token_ids), dtype=np.int64, count=begin)
    for row, span in zip(plan.rows, spans, strict=True):
        if row.continues:
            # its last token is what the step before sampled; a GPU has not handed it over yet
            token_ids[span.begin + span.num_tokens - 1] = previous.get(row.seq_id, PREVIOUS_TOKEN)
    positions = np.concatenate([np.arange(span.start, span.context) for span in spans])
    if not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        _report(errors, plan.rows, spans, (token_ids < 0) | (token_ids >= vocab_size), NO_SUCH_ID)
        token_ids[(token_ids < 0) | (token_ids >= vocab_size)] = 0
    if positions.max() >= max_model_len:
        _report(errors, plan.rows, spans, positions >= max_model_len, "a position is beyond the model's context")
        positions = positions.clip(max=max_model_len - 1)
    last_tokens = [span.begin + span.num_tokens - 1 for row, span in zip(plan.rows, spans, strict=True) if row.sample]
    sampled_rows = [(row.seq_id, row.sample) for row in plan.rows if row.sample]
    if plan.num_drafted:
        # a row of 4 tokens that begins at 7, the last 2 of them drafted, is sampled at 8, 9 and 10
        sampled_rows = [(row.seq_id, spec) for row in plan.rows for spec in row.specs]
        ends = [span.begin + span.num_tokens - len(row.specs) for row, span in zip(plan.rows, spans, strict=True)]
        last_tokens = [end + i for row, end in zip(plan.rows, ends, strict=True) for i in range(len(row.specs))]
    return StepInputs(
        token_ids=to_device(token_ids, device),
        positions=to_device(positions, device),
        spans=spans,
        lora=_lora_batch(plan.rows, spans, find_adapter, errors, device),
        sampled_tokens=None if len(last_tokens) == begin else to_device(np.array(last_tokens, dtype=np.int64), device),
        sampled_rows=sampled_rows,
        errors=errors,
        states=[row.state for row in plan.rows],
        has_drafts=plan.num_drafted > 0,
    )


class KeptInputs:
    """Inputs of a CPU's steps, kept from one to the next while the batch stays as it is.

    Args:
        vocab_size: as for ``build_step_inputs``, and so are the other ones.
        max_model_len: of the model.
        find_adapter: by digest; a step's adapters are looked up in every step.
        tables: of the plans' sequences.
        device: of the model; on another one than a CPU nothing is kept.
        is_kept: ``False`` lays out every step from its plan alone.
    """

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        find_adapter: FindAdapter,
        tables: KeptTables,
        device: torch.device,
        *,
        is_kept: bool,
    ) -> None:
        self._vocab_size, self._max_model_len, self._tables = vocab_size, max_model_len, tables
        self._find_adapter, self._device = find_adapter, device
        self._is_on = is_kept and device.type == "cpu"
        self._rows: tuple[PlanRow, ...] = ()
        """Of the step whose inputs can be kept; none: they cannot."""
        self._inputs: StepInputs | None = None
        self._token_ids = self._positions = memoryview(b"")
        """Memory of their tensors: for a few numbers Python's own writes are faster than those of numpy."""

    def of(self, plan: StepPlan, previous: Mapping[int, int]) -> StepInputs:
        """Inputs of a plan; ``previous`` as for ``build_step_inputs``."""
        last, self._rows = self._rows, ()  # an error on the way leaves nothing that could be kept
        inputs = self._inputs
        if inputs is None or len(last) != len(plan.rows) or not self._move(inputs, last, plan.rows, previous):
            sizes = self._vocab_size, self._max_model_len
            inputs = build_step_inputs(plan, *sizes, self._find_adapter, self._device, self._tables, previous)
            if not self._is_on or inputs.errors or not all(map(_is_stream, plan.rows)):
                return inputs
            self._inputs = inputs
            self._token_ids, self._positions = (t.numpy().data for t in (inputs.token_ids, inputs.positions))
        self._rows = plan.rows
        return inputs

    def _move(
        self, inputs: StepInputs, last: tuple[PlanRow, ...], rows: tuple[PlanRow, ...], previous: Mapping[int, int]
    ) -> bool:
        """Move the inputs of ``last`` on by a token; ``False``: these rows are others, and nothing of them counts."""
        grown, token_ids, positions = [], self._token_ids, self._positions
        vocab_size, max_model_len = self._vocab_size, self._max_model_len
        for index, (row, was, span) in enumerate(zip(rows, last, inputs.spans, strict=True)):
            start = row.start
            is_next = row.seq_id == was.seq_id and start == was.start + 1 and row.adapter_digest == was.adapter_digest
            if not is_next or not _is_stream(row):
                return False
            token = previous.get(row.seq_id, PREVIOUS_TOKEN) if row.continues else row.token_ids[0]
            if not 0 <= token < vocab_size or start >= max_model_len:
                return False
            token_ids[index], positions[index], span.start = token, start, start
            if row.block_table or row.table_begin != len(span.block_table):
                span.block_table = self._tables.of(row.seq_id)
                grown.append(index)
        if inputs.lora is not None and not self._has_adapters(inputs.lora, rows):
            return False
        inputs.sampled_rows = [(row.seq_id, row.sample) for row in rows if row.sample is not None]
        inputs.grown, inputs.states = grown, [row.state for row in rows]
        inputs.num_moves += 1
        return True

    def _has_adapters(self, lora: LoraBatch, rows: tuple[PlanRow, ...]) -> bool:
        """The adapters of the rows are there, and the ones that were; all of them are in use now."""
        digests = dict.fromkeys(row.adapter_digest for row in rows if row.adapter_digest)
        found = [self._find_adapter(digest) for digest in digests]
        return len(found) == len(lora.groups) and all(
            weights is group.weights for weights, group in zip(found, lora.groups, strict=True)
        )


def _is_stream(row: PlanRow) -> bool:
    """One token, which is sampled after, and nothing beside it."""
    return len(row.token_ids) == 1 and row.sample is not None and row.targets is None


def _report(
    errors: dict[int, str], rows: tuple[PlanRow, ...], spans: list[RowSpan], is_bad: np.ndarray, message: str
) -> None:
    for row, span in zip(rows, spans, strict=True):
        if is_bad[span.begin : span.begin + span.num_tokens].any():
            errors[row.seq_id] = message


def _lora_batch(
    rows: tuple[PlanRow, ...],
    spans: list[RowSpan],
    find_adapter: FindAdapter,
    errors: dict[int, str],
    device: torch.device,
) -> LoraBatch | None:
    """Group tokens by adapter: a slice where they are contiguous, else their places."""
    places: dict[str, list[RowSpan]] = {}
    for row, span in zip(rows, spans, strict=True):
        if row.adapter_digest:
            places.setdefault(row.adapter_digest, []).append(span)
    groups = []
    for digest, parts in places.items():
        weights = find_adapter(digest)
        if weights is None:
            errors.update({row.seq_id: ADAPTER_GONE for row in rows if row.adapter_digest == digest})
            continue
        groups.append(LoraGroup(weights, _token_places(parts, device)))
    return LoraBatch(tuple(groups)) if groups else None


def _token_places(spans: list[RowSpan], device: torch.device) -> slice | Tensor:
    begin, num_tokens = spans[0].begin, sum(span.num_tokens for span in spans)
    if spans[-1].begin + spans[-1].num_tokens == begin + num_tokens:  # spans ascend, so there is no hole
        return slice(begin, begin + num_tokens)
    tokens = np.concatenate([np.arange(span.begin, span.begin + span.num_tokens) for span in spans])
    return to_device(tokens, device)
