"""Truncation of the distribution after temperature: min-p, then top-k, then top-p.

Each keeps a set of the form "logit >= threshold", so tokens with equal logits share their fate.  Logits come with their
maximum at 0.  Top-p keeps the smallest such set whose share of what top-k left is at least p.
Sums are float64 over a row's own values: a row's result does not depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_CANDIDATES = 256
"""Most likely tokens looked at first; a row that needs more is sorted completely."""


def min_p_(logits: Tensor, min_p: Tensor) -> None:
    """Ban tokens less likely than ``min_p`` [rows] times the most likely one, in place."""
    logits.masked_fill_(logits < min_p.log().unsqueeze(1), -torch.inf)


def top_k_top_p_(logits: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Ban everything outside of top-k and top-p, in place.

    Args:
        logits: float32 [rows, vocab], maximum 0.
        top_k: int64 [rows], the vocabulary size where it is off.
        top_p: float64 [rows], 1 where it is off.
    """
    vocab = logits.shape[1]
    limited = top_k[top_k < vocab]
    largest_k = int(limited.max()) if limited.numel() else 0
    num_candidates = min(vocab, max(NUM_CANDIDATES, largest_k))
    is_limited = top_k < vocab
    totals = torch.where(is_limited, 0.0, logits.double().exp_().sum(1))
    threshold, is_settled = _thresholds(logits, top_k, top_p, totals, num_candidates)
    if not bool(is_settled.all()):
        rows = (~is_settled).nonzero().squeeze(1)
        threshold[rows] = _thresholds(logits[rows], top_k[rows], top_p[rows], totals[rows], vocab)[0]
    logits.masked_fill_(logits < threshold.unsqueeze(1), -torch.inf)


def _thresholds(
    logits: Tensor, top_k: Tensor, top_p: Tensor, totals: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """Least logit kept per row [rows], and whether the candidates sufficed to know it."""
    vocab = logits.shape[1]
    values = torch.topk(logits, num_candidates, dim=1).values
    kth = values.gather(1, (top_k.clamp(max=num_candidates) - 1).unsqueeze(1))
    is_limited = (top_k < vocab).unsqueeze(1)
    is_kept = ~is_limited | (values >= kth)
    mass = values.double().exp_().masked_fill_(~is_kept, 0.0)
    cumulative = mass.cumsum(1)
    total = torch.where(is_limited, cumulative[:, -1:], totals.unsqueeze(1))
    target = top_p.unsqueeze(1) * total
    is_kept &= (cumulative - mass < target) | (top_p >= 1.0).unsqueeze(1)
    last = is_kept.sum(1, keepdim=True) - 1
    threshold = values.gather(1, last).squeeze(1)
    is_complete = (cumulative[:, -1] >= target[:, 0]) & (top_p < 1.0)
    is_off = ~is_limited[:, 0] & (top_p >= 1.0)
    threshold = torch.where(is_off, -torch.inf, threshold)
    return threshold, is_complete | is_off | is_limited[:, 0] | (num_candidates == vocab)
