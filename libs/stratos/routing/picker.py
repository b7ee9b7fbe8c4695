"""Filter, score, pick: first the decode worker, then the prefill workers that can send KV to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from stratos.core.placement import Work, WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.filters import (
    CAPACITY,
    DECODE_FILTERS,
    EMBEDDING_FILTERS,
    Filter,
    Rejection,
    first_rejection,
    has_role,
    prefill_filters,
    serves_model,
    speaks_protocol,
)
from stratos.routing.scorers import total_score
from stratos.routing.settings import ScorerWeights
from stratos.routing.worker_view import WorkerView

MAX_PREFILL = 2
SCORE_DIGITS = 9
"""Scores that agree so far are ties; summation order must not decide."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request may run."""

    decode: WorkerView | None
    """``None`` for embeddings, which run at the first of ``prefill``."""
    prefill: tuple[WorkerView, ...]

    @property
    def worker(self) -> WorkerView:
        """The worker that runs the request."""
        return self.decode or self.prefill[0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no worker was chosen: number of workers per reason."""

    rejections: Counter[Rejection]
    role: WorkerRole = WorkerRole.DECODE
    """Of the workers that were looked at."""

    @property
    def is_blocked(self) -> bool:
        """Some worker would take it once it has room."""
        return any(self.rejections[reason] for reason in CAPACITY)

    def __str__(self) -> str:
        counted = [f"{reason}: {count}" for reason, count in self.rejections.items() if reason is not Rejection.ROLE]
        return ", ".join(counted) or f"no {self.role} worker is known"


def choose(
    views: Sequence[WorkerView], ask: Ask, weights: ScorerWeights, rng: Random, *, preferred_prefill: str = ""
) -> Choice | Refusal:
    """Choose the decode worker and up to two prefill workers, best first; for embeddings one prefill worker alone.

    Args:
        views: every known worker.
        ask: the request with its admission numbers.
        weights: of the scorers.
        rng: breaks ties between equal scores.
        preferred_prefill: incarnation that has computed this prompt before; first among those that pass, because its
            prefix cache makes the prompt a re-send instead of a recompute.
    """
    if ask.request.work is Work.EMBEDDING:
        embedders, rejections = rank(views, ask, EMBEDDING_FILTERS, weights, rng)
        return Choice(None, (embedders[0],)) if embedders else Refusal(rejections, WorkerRole.PREFILL)
    decode, rejections = rank(views, ask, DECODE_FILTERS, weights, rng)
    if not decode:
        return Refusal(rejections)
    prefill, _ = rank(views, ask, prefill_filters(decode[0].status.identity), weights, rng)
    prefill.sort(key=lambda view: view.ref.incarnation != preferred_prefill)  # stable: the others keep their order
    return Choice(decode[0], tuple(prefill[:MAX_PREFILL]))


def never_fits(views: Sequence[WorkerView], ask: Ask) -> bool:
    """Decode workers of the model are known, and none of them, live or not, could ever hold the request."""
    if ask.request.work is Work.EMBEDDING:
        return False  # its inputs are separate; the worker refuses one that is too long
    is_known = False
    for view in views:
        if has_role(WorkerRole.DECODE)(view, ask) is None and serves_model(view, ask) is None:
            if not ask.never_fits(view):
                return False
            is_known = True
    return is_known


def missing_features(views: Sequence[WorkerView], ask: Ask) -> frozenset[str]:
    """What no known worker of the model, live or not, offers together; nothing when none is known."""
    role = WorkerRole.PREFILL if ask.request.work is Work.EMBEDDING else WorkerRole.DECODE
    offered = [
        view.status.features
        for view in views
        if has_role(role)(view, ask) is None and serves_model(view, ask) is None and speaks_protocol(view, ask) is None
    ]
    lacking = [ask.request.required_features - features for features in offered]
    return min(lacking, key=len, default=frozenset())


def rank(
    views: Sequence[WorkerView], ask: Ask, filters: tuple[Filter, ...], weights: ScorerWeights, rng: Random
) -> tuple[list[WorkerView], Counter[Rejection]]:
    """Workers that pass, best first, and how many were rejected for which reason."""
    rejections: Counter[Rejection] = Counter()
    scored: list[tuple[float, float, WorkerView]] = []
    for view in views:
        rejection = first_rejection(view, ask, filters)
        if rejection is not None:
            rejections[rejection] += 1
            continue
        scored.append((round(total_score(view, ask, weights), SCORE_DIGITS), rng.random(), view))
    scored.sort(key=lambda item: item[:2], reverse=True)
    return [view for _, _, view in scored], rejections
