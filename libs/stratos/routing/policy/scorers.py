"""How well each worker suits a request: a scorer gives every worker a number in [0, 1], higher is better.

A scorer sees all candidates at once, so that it can compare them, and costs one call per decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from stratos.core.placement import PlacementRequest
from stratos.routing.worker_view import WorkerView

TOKENS_PER_SEQ = 512
"""Queued prompt tokens that weigh as much as one running sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringContext:
    """What scorers and filters know besides the workers."""

    request: PlacementRequest
    long_prompt_tokens: int


Scorer = Callable[[Sequence[WorkerView], ScoringContext], list[float]]


def score_load(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """1 for an idle worker, falling with sequences and with prompt tokens that wait there."""
    return [1.0 / (1.0 + view.num_seqs + view.num_queued_tokens / TOKENS_PER_SEQ) for view in views]


def score_free_kv(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Share of the KV pool that is free or evictable."""
    return [view.free_kv_ratio for view in views]


def score_queued_tokens(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Few prompt tokens to compute first; to a short prompt all queues below a long prompt are alike."""
    threshold = context.long_prompt_tokens
    if context.request.num_prompt_tokens >= threshold:
        return [threshold / (threshold + view.num_queued_tokens) for view in views]
    return [min(1.0, threshold / max(1, view.num_queued_tokens)) for view in views]


def score_adapter(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """1 when the adapter is in the worker's cache, or none is wanted."""
    digest = context.request.terms.adapter.digest
    if not digest:
        return [1.0] * len(views)
    return [float(digest in view.status.resident_adapters) for view in views]


SCORERS: MappingProxyType[str, Scorer] = MappingProxyType(
    {
        "load": score_load,
        "free_kv": score_free_kv,
        "queued_tokens": score_queued_tokens,
        "adapter": score_adapter,
    }
)
