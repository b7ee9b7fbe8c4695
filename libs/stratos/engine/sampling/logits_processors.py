"""Changes to the logits of single rows, before temperature: logit bias, penalties, bans, grammar masks.

Rows that need none are never touched; the functions edit one row [vocab] in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec

TokenMask = npt.NDArray[np.int32]
"""Allowed tokens of one row: bit ``t % 32`` of word ``t // 32``."""


def needs_edit(spec: SampleSpec) -> bool:
    """Some edit applies to this row."""
    params = spec.params
    return bool(
        params.logit_bias
        or params.has_penalties
        or params.bad_sequences
        or params.allowed_token_ids
        or params.watermark is not None
        or spec.num_output_tokens < params.min_tokens
    )


def edit_row(row: Tensor, spec: SampleSpec, eos_token_ids: Sequence[int], mask: TokenMask | None = None) -> None:
    """Apply everything that ``spec`` and its grammar ask for to float32 logits [vocab], in place.

    A watermark is not among it: ``watermark`` adds to what is not banned, for all rows at once.
    """
    params = spec.params
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        row.index_add_(0, ids, torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device))
    if params.has_penalties:
        _penalise(row, spec)
    if banned := banned_tokens(spec, eos_token_ids, mask):
        row[torch.tensor(banned, dtype=torch.int64, device=row.device)] = -torch.inf
    if params.allowed_token_ids:
        ids = torch.tensor(params.allowed_token_ids, dtype=torch.int64, device=row.device)
        kept = row[ids]
        row.fill_(-torch.inf)
        row[ids] = kept
    if mask is not None:
        apply_mask(row, mask)


def banned_tokens(spec: SampleSpec, eos_token_ids: Sequence[int], mask: TokenMask | None = None) -> list[int]:
    """Tokens that ``min_tokens`` and bad sequences ban at this position.

    Where the grammar's ``mask`` allows nothing but the ends that ``min_tokens`` would ban, they are not banned.
    """
    params, banned = spec.params, list[int]()
    if spec.num_output_tokens < params.min_tokens:
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)]
        banned += ends if mask is None or _allows_more(mask, ends) else []
    banned += [sequence[-1] for sequence in params.bad_sequences if _would_complete(sequence, spec.output_ids)]
    return banned


def _allows_more(mask: TokenMask, token_ids: Sequence[int]) -> bool:
    """Some bit besides those of ``token_ids`` is set."""
    rest = mask.view(np.uint32).copy()
    for token_id in token_ids:
        rest[token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))
    return bool(rest.any())


def _would_complete(sequence: tuple[int, ...], output_ids: tuple[int, ...]) -> bool:
    """The output ends with all tokens of ``sequence`` but its last."""
    num_before = len(sequence) - 1
    return num_before == 0 or output_ids[-num_before:] == sequence[:-1]


def _penalise(row: Tensor, spec: SampleSpec) -> None:
    """Repetition counts prompt and output, presence and frequency count output only."""
    params: SamplingParams = spec.params
    output_ids, counts = np.unique(np.asarray(spec.output_ids, dtype=np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(output_ids, np.asarray(spec.prompt_ids, dtype=np.int64))
        ids = torch.from_numpy(seen).to(row.device)
        logits = row[ids]
        row[ids] = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    if len(output_ids) and (params.frequency_penalty or params.presence_penalty):
        penalty = (
            torch.from_numpy(counts).to(row.device, row.dtype) * params.frequency_penalty + params.presence_penalty
        )
        row.index_add_(0, torch.from_numpy(output_ids).to(row.device), -penalty)


def apply_mask(row: Tensor, mask: TokenMask) -> None:
    """Ban every token whose bit is not set, in place."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")[: row.shape[0]]
    row.masked_fill_(torch.from_numpy(bits == 0).to(row.device), -torch.inf)
