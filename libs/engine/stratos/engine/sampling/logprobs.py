"""Log probabilities of sampled tokens under the raw logits: before bias, penalties, bans and temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.core.request import PositionLogprobs, TokenLogprob


def position_logprobs(raw: Tensor, token_ids: Tensor, num_top: list[int]) -> list[PositionLogprobs]:
    """Log probability and rank of each row's token and of its most likely ones.

    Args:
        raw: float32 logits [rows, vocab], unedited.
        token_ids: int64 [rows], the sampled tokens.
        num_top: how many most likely tokens each row reports.

    Returns:
        One record per row; equal logits share a rank and are listed by token id.
    """
    norm = raw.logsumexp(1)
    sampled = raw.gather(1, token_ids.unsqueeze(1))
    logprobs = (sampled.squeeze(1) - norm).tolist()
    ranks = ((raw > sampled).sum(1) + 1).tolist()
    top = [()] * len(num_top) if not any(num_top) else _top(raw, norm, num_top)
    return [
        PositionLogprobs(TokenLogprob(token, logprob, rank), row_top)
        for token, logprob, rank, row_top in zip(token_ids.tolist(), logprobs, ranks, top, strict=True)
    ]


def _top(raw: Tensor, norm: Tensor, num_top: list[int]) -> list[tuple[TokenLogprob, ...]]:
    values, ids = torch.topk(raw, min(max(num_top), raw.shape[1]), dim=1)
    rows = zip((values - norm.unsqueeze(1)).tolist(), ids.tolist(), num_top, strict=True)
    return [
        _ranked(sorted(zip(logprobs, tokens, strict=True), key=_best_first)[:count]) for logprobs, tokens, count in rows
    ]


def _best_first(entry: tuple[float, int]) -> tuple[float, int]:
    return -entry[0], entry[1]


def _ranked(entries: list[tuple[float, int]]) -> tuple[TokenLogprob, ...]:
    ranked: list[TokenLogprob] = []
    for index, (logprob, token) in enumerate(entries):
        is_tied = index > 0 and entries[index - 1][0] == logprob
        ranked.append(TokenLogprob(token, logprob, ranked[-1].rank if is_tied else index + 1))
    return tuple(ranked)
