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
    deciding_filters,
    has_role,
    prefill_filters,
    serves_model,
    speaks_protocol,
)
from stratos.routing.policy.policies import Policies
from stratos.routing.worker_view import WorkerView

MAX_PREFILL = 2


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

    def without_sources(self) -> Choice:
        """The same worker, which computes the prompt itself."""
        return self if self.decode is None else Choice(self.decode, ())


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
    views: Sequence[WorkerView], ask: Ask, policies: Policies, rng: Random, *, preferred_prefill: str = ""
) -> Choice | Refusal:
    """Choose the decode worker and up to two prefill workers, best first; for embeddings one prefill worker alone.

    Args:
        views: every known worker.
        ask: the request with its admission numbers.
        policies: of the pools.
        rng: breaks ties between equal scores.
        preferred_prefill: incarnation that has computed this prompt before; first among those that pass, because its
            prefix cache makes the prompt a re-send instead of a recompute.
    """
    context = policies.context(ask.request)
    if ask.request.work is Work.EMBEDDING:
        able, rejections = eligible(views, ask, EMBEDDING_FILTERS)
        embedders = policies.rank(able, context, WorkerRole.PREFILL, 1, rng)
        return Choice(None, tuple(embedders)) if embedders else Refusal(rejections, WorkerRole.PREFILL)
    able, rejections = eligible(views, ask, DECODE_FILTERS)
    decode = policies.rank(able, context, WorkerRole.DECODE, 1, rng)
    if not decode:
        return Refusal(rejections)
    able, _ = eligible(views, ask, prefill_filters(decode[0].status.identity))
    known = [view for view in able if view.ref.incarnation == preferred_prefill]
    others = [view for view in able if view.ref.incarnation != preferred_prefill]
    prefill = known + policies.rank(others, context, WorkerRole.PREFILL, MAX_PREFILL - len(known), rng)
    return Choice(decode[0], tuple(prefill))


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


def eligible(
    views: Sequence[WorkerView], ask: Ask, filters: tuple[Filter, ...]
) -> tuple[list[WorkerView], Counter[Rejection]]:
    """Workers that pass, and how many were rejected for which reason."""
    rejections: Counter[Rejection] = Counter()
    able = []
    checks = deciding_filters(ask, filters)
    for view in views:
        for check in checks:
            if (rejection := check(view, ask)) is not None:
                rejections[rejection] += 1
                break
        else:
            able.append(view)
    return able, rejections
