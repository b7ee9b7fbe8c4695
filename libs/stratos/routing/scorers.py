"""Which worker should run a request: each scorer gives a worker a number in [0, 1], higher is better."""

from __future__ import annotations

from stratos.routing.admission import Ask
from stratos.routing.settings import ScorerWeights
from stratos.routing.worker_view import WorkerView

TOKENS_PER_SEQ = 512
"""Queued prompt tokens that weigh as much as one running sequence."""


def score_queue(view: WorkerView, ask: Ask) -> float:
    """1 for an idle worker, falling with sequences and with prompt tokens that wait there."""
    return 1.0 / (1.0 + view.num_seqs + view.num_queued_tokens / TOKENS_PER_SEQ)


def score_free_kv(view: WorkerView, ask: Ask) -> float:
    """Share of the KV pool that is free or evictable."""
    return view.free_kv_ratio


def score_adapter(view: WorkerView, ask: Ask) -> float:
    """1 when the adapter is in the worker's cache, or none is wanted."""
    digest = ask.request.terms.adapter.digest
    return 1.0 if not digest or digest in view.status.resident_adapters else 0.0


def total_score(view: WorkerView, ask: Ask, weights: ScorerWeights) -> float:
    """Weighted sum."""
    return (
        weights.queue * score_queue(view, ask)
        + weights.free_kv * score_free_kv(view, ask)
        + weights.adapter * score_adapter(view, ask)
    )
