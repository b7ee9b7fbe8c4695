"""Changes to the logits of single rows, before temperature: logit bias, penalties, bans, allowed tokens, grammar masks.

``row_changes`` finds on the host what a request and its grammar ask for; it is the one place that knows the parameters.
``apply_changes`` makes them to one row in torch; the GPU's sampler turns those of all rows into flat index lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec

TokenMask = npt.NDArray[np.int32]
"""Allowed tokens of one row: bit ``t % 32`` of word ``t // 32``."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Processors of one row, in this order; a watermark comes between penalties and bans, for all rows at once."""

    bias: Mapping[int, float]
    penalties: tuple[float, float, float] | None
    """Repetition, frequency, presence; ``None`` where none is on."""
    banned: list[int]
    allowed: TokenMask | None
    """The grammar's mask, the request's allowed tokens, or what both allow."""


def needs_processing(spec: SampleSpec) -> bool:
    """Some logits processor but a grammar applies to this row."""
    params = spec.params
    return bool(
        params.logit_bias
        or params.has_penalties
        or params.bad_sequences
        or params.allowed_token_ids
        or params.watermark is not None
        or spec.num_output_tokens < params.min_tokens
    )


def row_changes(
    spec: SampleSpec, eos_token_ids: Sequence[int], vocab_size: int, mask: TokenMask | None = None
) -> RowChanges:
    """Everything that ``spec`` and its grammar's ``mask`` ask for at this position."""
    params = spec.params
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return RowChanges(
        bias=params.logit_bias,
        penalties=penalties if params.has_penalties else None,
        banned=banned_tokens(spec, eos_token_ids, mask),
        allowed=allowed_tokens(params.allowed_token_ids, vocab_size, mask),
    )


def apply_changes(row: Tensor, changes: RowChanges, spec: SampleSpec) -> None:
    """Make ``changes`` to float32 logits [vocab], in place."""
    if changes.bias:
        ids = torch.tensor(list(changes.bias), device=row.device)
        row.index_add_(0, ids, torch.tensor(list(changes.bias.values()), dtype=row.dtype, device=row.device))
    if changes.penalties is not None:
        _penalise(row, spec)
    if changes.banned:
        row[torch.tensor(changes.banned, dtype=torch.int64, device=row.device)] = -torch.inf
    if changes.allowed is not None:
        bits = np.unpackbits(changes.allowed.view(np.uint8), bitorder="little")[: row.shape[0]]
        row.masked_fill_(torch.from_numpy(bits == 0).to(row.device), -torch.inf)


def banned_tokens(spec: SampleSpec, eos_token_ids: Sequence[int], mask: TokenMask | None) -> list[int]:
    """Tokens that ``min_tokens`` and bad sequences ban.

    Where the grammar's ``mask`` allows nothing but the ends that ``min_tokens`` would ban, they are not banned.
    """
    params, banned = spec.params, list[int]()
    if spec.num_output_tokens < params.min_tokens:
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)]
        banned += ends if mask is None or _allows_more(mask, ends) else []
    banned += [sequence[-1] for sequence in params.bad_sequences if _would_complete(sequence, spec.output_ids)]
    return banned


def _allows_more(mask: TokenMask, token_ids: Sequence[int]) -> bool:
    """Some bit other than those of ``token_ids`` is set."""
    rest = mask.view(np.uint32).copy()
    for token_id in token_ids:
        rest[token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))
    return bool(rest.any())


def _would_complete(sequence: tuple[int, ...], output_ids: tuple[int, ...]) -> bool:
    """The output ends with all tokens of ``sequence`` but its last."""
    num_before = len(sequence) - 1
    return num_before == 0 or output_ids[-num_before:] == sequence[:-1]


def allowed_tokens(token_ids: Sequence[int], vocab_size: int, mask: TokenMask | None) -> TokenMask | None:
    """Tokens that both a request's list, where there is one, and a grammar's ``mask`` allow; ``None`` allows all."""
    num_words = -(-vocab_size // 32)
    own = None if mask is None else np.ascontiguousarray(mask[:num_words])
    if not token_ids:
        return own
    bits = np.zeros(vocab_size, dtype=np.uint8)
    bits[list(token_ids)] = 1
    # whole words of 32 bits, as a grammar's mask has them
    words = np.packbits(np.pad(bits, (0, num_words * 32 - vocab_size)), bitorder="little").view(np.int32)
    return words if own is None else words & own


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
