"""Log probabilities of sampled tokens under the raw logits: before bias, penalties, bans and temperature."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stratos.core.requests.records import PositionLogprobs, TokenLogprob


def position_logprobs(raw: Tensor, token_ids: Tensor, num_top: list[int]) -> list[PositionLogprobs]:
    """Log probability and rank of each row's token and of its most likely ones.

    Args:
        raw: float32 logits [rows, vocab], before any logits processor.
        token_ids: int64 [rows], the sampled tokens.
        num_top: how many most likely tokens each row reports.

    Returns:
        One record per row; equal logits share a rank and are listed by token id.
    """
    max_top = min(max(num_top, default=0), raw.shape[1])
    return position_records(logprob_tensors(raw, token_ids, max_top), token_ids.tolist(), num_top)


class LogprobTensors(NamedTuple):
    """Values of records, on the device of the logits."""

    logprobs: Tensor
    """float32 [rows], of the sampled tokens."""
    ranks: Tensor
    """int64 [rows], from 1."""
    top_logprobs: Tensor
    """float32 [rows, maximum that a row reports]."""
    top_ids: Tensor
    """int64, like ``top_logprobs``."""


def logprob_tensors(raw: Tensor, token_ids: Tensor, num_top: int) -> LogprobTensors:
    """Compute without waiting for the device; arguments as for ``position_logprobs``."""
    norm = _log_norms(raw)
    sampled = raw.gather(1, token_ids.unsqueeze(1))
    values, ids = torch.topk(raw, min(num_top, raw.shape[1]), dim=1)
    ranks = (raw > sampled).sum(1) + 1
    return LogprobTensors(sampled.squeeze(1) - norm, ranks, values - norm.unsqueeze(1), ids)


def _log_norms(raw: Tensor) -> Tensor:
    """``logsumexp`` of each row, the same bits in any batch: on CPU torch cuts a long row among its threads."""
    if raw.is_cuda:
        return raw.logsumexp(1)
    norms = np.empty(len(raw), dtype=np.float32)
    with np.errstate(invalid="ignore"):  # a row that is not finite is reported elsewhere
        for index, row in enumerate(raw.numpy()):
            maximum = row.max()
            norms[index] = maximum + np.log(np.exp(row - maximum).sum())
    return torch.from_numpy(norms)


def position_records(tensors: LogprobTensors, token_ids: list[int], num_top: list[int]) -> list[PositionLogprobs]:
    """One record per row; waits for the device."""
    top = zip(tensors.top_logprobs.tolist(), tensors.top_ids.tolist(), num_top, strict=True)
    rows = zip(token_ids, tensors.logprobs.tolist(), tensors.ranks.tolist(), top, strict=True)
    return [
        position_record(TokenLogprob(token, logprob, rank), logprobs, tokens, count)
        for token, logprob, rank, (logprobs, tokens, count) in rows
    ]


def position_record(
    sampled: TokenLogprob, logprobs: Sequence[float], token_ids: Sequence[int], count: int
) -> PositionLogprobs:
    """Record of a sampled token and the best ``count`` of others, which come in any order."""
    # by falling logprob, then by rising id: the order of pairs with the logprob's sign changed
    best = sorted(zip(map(operator.neg, logprobs), token_ids, strict=True))[:count]
    ranked, rank, last = [], 0, None
    for place, (negated, token) in enumerate(best, 1):
        if negated != last:
            rank, last = place, negated
        ranked.append(TokenLogprob(token, -negated, rank))
    return PositionLogprobs(sampled, tuple(ranked))
