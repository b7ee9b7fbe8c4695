"""Turns a plan into the tensors of one forward pass, once per step: numpy on the host, then one copy each.

Rows that cannot run (a token outside of the vocabulary, a position beyond the context, an adapter that is not loaded)
are reported, and run harmlessly with token 0 and the base model, so that the rest of the batch is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import RowSpan
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import ADAPTER_GONE, NO_SUCH_ID, PREVIOUS_TOKEN, PlanRow, SampleSpec, StepPlan
from stratos.engine.lora.batch import LoraBatch, LoraGroup
from stratos.engine.lora.weights import LoraWeights
from stratos.engine.memory.copies import to_device

FindAdapter = Callable[[str], LoraWeights | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Inputs of one forward pass over T tokens."""

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
    )


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
