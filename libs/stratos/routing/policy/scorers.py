"""How well each worker suits a request: a scorer gives every worker a number in [0, 1], higher is better.

A scorer sees all candidates at once, so that it can compare them, and costs one call per decision.  One number stands
for all workers where they are alike: most scorers say nothing of most requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from types import MappingProxyType

from stratos.common.changed import record
from stratos.core.placement import PlacementRequest
from stratos.routing.worker_view import WorkerView

TOKENS_PER_SEQ = 512
"""Queued prompt tokens that weigh as much as one running sequence."""
_ODD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""Fibonacci hashing: of the product's low 64 bits the high ones, which decide an order, depend on all of a key."""


@record(frozen=True, slots=True, kw_only=True)
class ScoringContext:
    """A request as scorers and filters see it."""

    request: PlacementRequest
    long_prompt_tokens: int
    num_matched: Mapping[str, int]
    """Incarnation -> blocks of the prompt, from the first on, that its prefix cache has; those without any left out."""
    num_below: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Among them those that it has in host memory alone, and on disk alone; without any left out."""
    zone: str = ""
    """Where workers should be: where the gateway is, and for prefill workers where the decode worker is."""
    region: str = ""
    """Around that zone."""


Scores = list[float] | float
Scorer = Callable[[Sequence[WorkerView], ScoringContext], Scores]


def score_load(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """1 for an idle worker, falling with sequences and with prompt tokens that wait there."""
    return [1.0 / (1.0 + view.num_seqs + view.num_queued_tokens / TOKENS_PER_SEQ) for view in views]


def score_free_kv(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Share of the KV pool that is free or evictable."""
    return [view.free_kv_ratio for view in views]


def score_free_slots(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Share of the batch slots that no sequence wants; falls evenly, where ``load`` falls fast at first."""
    return [view.free_slots_ratio for view in views]


def score_queued_tokens(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Few prompt tokens to compute first; to a short prompt all queues below a long prompt are alike."""
    threshold = context.long_prompt_tokens
    if context.request.num_prompt_tokens >= threshold:
        return [threshold / (threshold + view.num_queued_tokens) for view in views]
    return [min(1.0, threshold / max(1, view.num_queued_tokens)) for view in views]


def score_adapter(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """1 when the adapter is in the worker's cache, or none is wanted."""
    digest = context.request.terms.adapter.digest
    if not digest:
        return 1.0
    return [float(digest in view.status.resident_adapters) for view in views]


def score_zone(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """1 in the zone that is wanted, or when either side's is unknown."""
    zone = context.zone
    if not zone:
        return 1.0
    return [float(view.status.zone in ("", zone)) for view in views]


def score_region(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """1 in the region that is wanted, or when either side's is unknown."""
    region = context.region
    if not region:
        return 1.0
    return [float(view.status.region in ("", region)) for view in views]


def score_ttft(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """The shortest time to first token of all, divided by the worker's; one without a measurement is tried."""
    return _shortest_over([view.status.ttft_s for view in views])


def score_itl(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """The shortest time between tokens of all, divided by the worker's; one without a measurement is tried."""
    return _shortest_over([view.status.itl_s for view in views])


def _shortest_over(seconds: Sequence[float]) -> list[float]:
    shortest = min((one for one in seconds if one > 0), default=0.0)
    return [shortest / one if one > 0 else 1.0 for one in seconds]


def num_saved(view: WorkerView, context: ScoringContext) -> float:
    """Blocks of the prompt that the worker need not compute; one that it has to load saves what loading leaves."""
    saved = context.num_matched.get(view.ref.incarnation, 0)
    if (below := context.num_below.get(view.ref.incarnation)) is None:
        return saved
    num_host, num_disk = below
    return saved - num_host * view.status.host_load_ratio - num_disk * view.status.disk_load_ratio


def score_prefix(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """Share of the prompt's known blocks that the worker has, less what loading them takes."""
    matched, total = context.num_matched, max(1, len(context.request.block_hashes))
    if not matched:
        return 0.0
    return [num_saved(view, context) / total for view in views]


def score_first_token(views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
    """Few tokens to compute before the first one comes: prompt tokens that wait there, and of this prompt the rest."""
    matched, num_tokens = context.num_matched, context.request.num_prompt_tokens
    whole = TOKENS_PER_SEQ + num_tokens
    scores = [TOKENS_PER_SEQ / (whole + view.num_queued_tokens) for view in views]
    for index, view in enumerate(views) if matched else ():
        if view.ref.incarnation in matched:  # few workers have a given prompt
            rest = max(0, num_tokens - num_saved(view, context) * view.status.block_size)
            scores[index] = TOKENS_PER_SEQ / (TOKENS_PER_SEQ + view.num_queued_tokens + rest)
    return scores


def score_session(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """1 for the first worker in the order that belongs to the session, by rendezvous hashing; then 1/2, 1/4."""
    key = context.request.session_key or (context.request.block_hashes or (0,))[0]
    if not key:
        return 0.0
    scores = [0.0] * len(views)
    ranks = [((key ^ _worker_key(view.ref.worker_id)) * _ODD) & _MASK for view in views]
    for place, rank in enumerate(sorted(ranks, reverse=True)[:3]):
        scores[ranks.index(rank)] = 0.5**place
    return scores


@lru_cache(maxsize=4096)
def _worker_key(worker_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(worker_id.encode(), digest_size=8).digest(), "little")


def score_clear(views: Sequence[WorkerView], context: ScoringContext) -> Scores:
    """1 where no request of the lowest class runs that this router placed; to one of that class all are alike."""
    if context.request.takes_spot:
        return 1.0
    return [0.0 if view.held.num_lowest_seqs else 1.0 for view in views]


SCORERS: MappingProxyType[str, Scorer] = MappingProxyType(
    {
        "load": score_load,
        "free_slots": score_free_slots,
        "free_kv": score_free_kv,
        "queued_tokens": score_queued_tokens,
        "adapter": score_adapter,
        "zone": score_zone,
        "region": score_region,
        "ttft": score_ttft,
        "itl": score_itl,
        "prefix": score_prefix,
        "first_token": score_first_token,
        "session": score_session,
        "clear": score_clear,
    }
)
INDEXED_SCORERS = frozenset({"prefix", "first_token"})
"""Scorers that need to know what the workers' prefix caches hold."""
