"""Truncation of the distribution after temperature: min-p, then top-k, then top-p.

Each keeps a set of the form "logit >= threshold", so tokens with equal logits share their fate.  Logits come with their
maximum at 0.  Top-p keeps the smallest such set whose share of what is left so far reaches p.
What survives usually is few tokens, so only the most likely ones are looked at first (``CANDIDATES``); a row whose
kept set reaches the end of that list is looked at again with a longer one.  Sums are float64 over a row's own values,
so a row's result does not depend on its neighbours.

The parameters are read here for both samplers: ``survivors`` for the portable one, ``kernel_settings`` for the GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.core.requests.sampling_params import SamplingParams

CANDIDATES = (64, 1024)
"""Lengths tried before a row is sorted completely."""
MIN_TEMPERATURE = 1e-30
"""Below it a division by the temperature would give numbers that are none."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The most likely tokens of each row, those truncated away at -inf: [rows, candidates]."""

    logits: Tensor
    token_ids: Tensor
    is_complete: Tensor
    """Bool [rows]: every kept token is among the candidates."""


def takes_best(params: SamplingParams) -> bool:
    """The token is the plain argmax: nothing is drawn."""
    return params.is_greedy or params.top_k == 1


def is_truncated(params: SamplingParams) -> bool:
    """Some filter is on."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def kernel_settings(params: SamplingParams, vocab_size: int) -> tuple[float, float, float, float]:
    """Temperature (0: takes the best), top-k (0: off), top-p and min-p, as ``triton_kernels.sampling`` reads them."""
    temperature = 0.0 if takes_best(params) else max(params.temperature, MIN_TEMPERATURE)
    return temperature, params.top_k if params.top_k < vocab_size else 0, params.top_p, params.min_p


def scale_(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Divide by each row's temperature, in place."""
    temperature = [max(p.temperature, MIN_TEMPERATURE) for p in params]
    logits.div_(_column(temperature, torch.float32, logits).unsqueeze(1))


def survivors(scaled: Tensor, params: Sequence[SamplingParams]) -> Iterator[tuple[Tensor, Kept]]:
    """Truncate every row; ``scaled`` is changed.

    Yields:
        Rows, int64, and what is kept of them.  A row comes again, with more candidates, until its kept set is complete;
        the last one counts.
    """
    vocab_size = scaled.shape[1]
    if any(p.min_p > 0 for p in params):
        _min_p_(scaled, _column([p.min_p for p in params], torch.float32, scaled))
    top_k = _column([min(p.top_k or vocab_size, vocab_size) for p in params], torch.int64, scaled)
    top_p = _column([p.top_p for p in params], torch.float64, scaled)
    rows = torch.arange(len(params), device=scaled.device)
    for count in _candidate_counts(vocab_size, max((p.top_k for p in params if p.top_k < vocab_size), default=0)):
        kept = keep_top(scaled[rows], top_k[rows], top_p[rows], count)
        yield rows, kept
        if bool(kept.is_complete.all()):
            return
        rows = rows[~kept.is_complete]


def _column(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)


def _min_p_(logits: Tensor, min_p: Tensor) -> None:
    """Ban tokens less likely than ``min_p`` [rows] times the most likely one, in place."""
    logits.masked_fill_(logits < min_p.log().unsqueeze(1), -torch.inf)


def _candidate_counts(vocab_size: int, largest_k: int) -> list[int]:
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
    # a threshold instead of the first k places: tokens equal to the k-th stay, too
    kth = values.gather(1, (top_k.clamp(max=num_candidates) - 1).unsqueeze(1))
    is_kept = (values > -torch.inf) & (~is_limited | (values >= kth))
    # tokens equal to the k-th may go on beyond the list: p would be a share of too little
    is_cut = (is_limited & (values[:, -1:] >= kth) & (values[:, -1:] > -torch.inf)).squeeze(1)
    if bool((top_p < 1).any()):
        mass = values.double().exp_().masked_fill_(~is_kept, 0.0)
        cumulative = mass.cumsum(1)
        # p is a share of what top-k left; without top-k the mass beyond the candidates counts, too
        total = torch.where(is_limited, cumulative[:, -1:], logits.exp().sum(1, keepdim=True, dtype=torch.float64))
        # a token stays while the mass before it is less than p: so the one that crosses p stays
        is_before = cumulative - mass < top_p.unsqueeze(1) * total
        is_kept &= is_before | (top_p >= 1).unsqueeze(1)
        threshold = values.gather(1, is_kept.sum(1, keepdim=True) - 1)
        is_kept = (values > -torch.inf) & (values >= threshold)
    # a kept set that fills the list may go on beyond it
    is_complete = (is_kept.sum(1) < num_candidates) & ~is_cut
    if num_candidates == vocab_size:
        is_complete.fill_(value=True)
    return Kept(values.masked_fill_(~is_kept, -torch.inf), token_ids, is_complete)
