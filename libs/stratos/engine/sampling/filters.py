"""Truncation of the distribution after temperature: min-p, then top-k, then top-p.

Each keeps a set of the form "logit >= threshold", so tokens with equal logits share their fate.  Logits come with their
maximum at 0.  Top-p keeps the smallest such set whose share of what is left so far is at least p.
What survives usually is few tokens, so only the most likely ones are looked at first (``CANDIDATES``); a row whose
kept set reaches the end of that list is looked at again with a longer one.  Sums are float64 over a row's own values,
so a row's result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = (64, 1024)
"""Lengths tried before a row is sorted completely."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The most likely tokens of each row, those truncated away at -inf: [rows, candidates]."""

    logits: Tensor
    token_ids: Tensor
    is_complete: Tensor
    """Bool [rows]: every kept token is among the candidates."""


def min_p_(logits: Tensor, min_p: Tensor) -> None:
    """Ban tokens less likely than ``min_p`` [rows] times the most likely one, in place."""
    logits.masked_fill_(logits < min_p.log().unsqueeze(1), -torch.inf)


def candidate_counts(vocab_size: int, largest_k: int) -> list[int]:
    """Lengths to try, ending with the vocabulary; the first holds one token more than any top-k."""
    counts = [max(count, largest_k + 1) for count in CANDIDATES]
    return [*(count for count in counts if count < vocab_size), vocab_size]


def keep_top(logits: Tensor, top_k: Tensor, top_p: Tensor, num_candidates: int) -> Kept:
    """Apply top-k and top-p to the most likely tokens.

    Args:
        logits: float32 [rows, vocab], maximum 0.
        top_k: int64 [rows], the vocabulary size where it is off.
        top_p: float64 [rows], 1 where it is off.
        num_candidates: more than any ``top_k`` that is on, or the vocabulary size.
    """
    vocab_size = logits.shape[1]
    if num_candidates < vocab_size:
        values, token_ids = torch.topk(logits, num_candidates, dim=1)
    else:
        values, token_ids = torch.sort(logits, dim=1, descending=True)
    is_limited = (top_k < vocab_size).unsqueeze(1)
    kth = values.gather(1, (top_k.clamp(max=num_candidates) - 1).unsqueeze(1))
    is_kept = (values > -torch.inf) & (~is_limited | (values >= kth))
    if bool((top_p < 1).any()):
        mass = values.double().exp_().masked_fill_(~is_kept, 0.0)
        cumulative = mass.cumsum(1)
        total = torch.where(is_limited, cumulative[:, -1:], logits.exp().sum(1, keepdim=True, dtype=torch.float64))
        is_before = cumulative - mass < top_p.unsqueeze(1) * total
        is_kept &= is_before | (top_p >= 1).unsqueeze(1)
        least = values.gather(1, is_kept.sum(1, keepdim=True) - 1)
        is_kept = (values > -torch.inf) & (values >= least)
    is_complete = is_kept.sum(1) < num_candidates
    if num_candidates == vocab_size:
        is_complete.fill_(value=True)
    return Kept(values.masked_fill_(~is_kept, -torch.inf), token_ids, is_complete)
