"""Filter, score, pick: first the decode worker, then the prefill workers that can send KV to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from stratos.common.changed import changed
from stratos.core.placement import Work, WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.filters import (
    CAPACITY,
    DECODE_FILTERS,
    EMBEDDING_FILTERS,
    Filter,
    Rejection,
    able_sources,
    deciding_filters,
    first_rejection,
    may_vanish,
    speaks_protocol,
)
from stratos.routing.fleet_views import FleetViews, Pool
from stratos.routing.plan_pools import preferred, preferred_sources
from stratos.routing.policy.policies import Policies
from stratos.routing.worker_view import WorkerView

MAX_PREFILL = 2
MAX_NAMED = 8
"""Workers that could run a request, and of those that could not, which its receipt names."""


@dataclass(frozen=True, slots=True)
class Considered:
    """The workers that a choice was made from."""

    able: Sequence[WorkerView]
    scores: Sequence[float]
    rejected: Sequence[tuple[WorkerView, Rejection]]
    """Some of those that a filter dropped."""
    num_workers: int
    """In the pool, those that were not looked at too."""


NOT_TOLD = Considered((), (), (), 0)


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    """Where a request may run."""

    decode: WorkerView | None
    """``None`` for embeddings, which run at the first of ``prefill``."""
    prefill: tuple[WorkerView, ...]
    considered: Considered = NOT_TOLD

    @property
    def worker(self) -> WorkerView:
        """The worker that runs the request."""
        return self.decode or self.prefill[0]

    def with_rejected(self, rejected: Sequence[tuple[WorkerView, Rejection]]) -> EndpointChoice:
        """The same, with workers that were dropped before the filters looked at them."""
        considered = replace(self.considered, rejected=(*self.considered.rejected, *rejected))
        return replace(self, considered=considered)

    def without_sources(self) -> EndpointChoice:
        """The same worker, which computes the prompt itself."""
        return self if self.decode is None else EndpointChoice(self.decode, (), self.considered)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no worker was chosen: number of workers per reason."""

    rejections: Counter[Rejection]
    role: WorkerRole = WorkerRole.DECODE
    """Role of the workers that were looked at."""

    @property
    def is_blocked(self) -> bool:
        """Some worker would take it once it has room."""
        return any(self.rejections[reason] for reason in CAPACITY)

    def __str__(self) -> str:
        counted = [f"{reason}: {count}" for reason, count in self.rejections.items()]
        return ", ".join(counted) or f"no {self.role} worker is known"


def choose(
    views: FleetViews,
    ask: Ask,
    policies: Policies,
    rng: Random,
    *,
    preferred_prefill: str = "",
    pool: Pool | None = None,
    is_able: bool = False,
) -> EndpointChoice | Refusal:
    """Choose the decode worker and up to two prefill workers, best first; for embeddings one prefill worker alone.

    Args:
        views: every known worker.
        ask: the request with its admission numbers.
        policies: of the pools.
        rng: breaks ties between equal scores.
        preferred_prefill: incarnation that has computed this prompt before; first among those that the policy
            keeps, because its prefix cache makes the prompt a re-send instead of a recompute.
        pool: of the workers that could run it those that are looked at; all of them if absent.
        is_able: they are known to pass every filter.
    """
    request, context = ask.request, policies.context(ask.request)
    role = request.work.role
    whole = views.pool_of(request)
    pool = whole if pool is None else pool
    rejected: list[tuple[WorkerView, Rejection]] = []
    filters = EMBEDDING_FILTERS if request.work is Work.EMBEDDING else DECODE_FILTERS
    able, rejections = (list(pool), Counter[Rejection]()) if is_able else eligible(pool, ask, filters, rejected)
    ranking = policies.rank(preferred(able, ask), context, role, 1, rng)
    if not ranking.workers:
        others = views.num_of_role(role) - len(pool)
        return Refusal(rejections + Counter({Rejection.MODEL: others}), role)
    considered = Considered(ranking.considered, ranking.scores, rejected, len(whole))
    if role is WorkerRole.PREFILL:
        return EndpointChoice(None, tuple(ranking.workers), considered)
    decode = ranking.workers[0]
    sources = views.pool(WorkerRole.PREFILL, request.model_digest)
    senders = preferred_sources(able_sources(sources, ask, decode.status.identity), ask)
    zone, region = decode.status.zone, decode.status.region
    if (zone, region) != (context.zone, context.region):  # KV goes to it, not to the gateway
        context = changed(context, zone=zone, region=region)
    prefill = policies.rank(senders, context, WorkerRole.PREFILL, MAX_PREFILL, rng, preferred_prefill).workers
    return EndpointChoice(decode, tuple(prefill), considered)


def never_fits(views: FleetViews, ask: Ask) -> bool:
    """Decode workers of the model are known, and none of them, live or not, could ever hold the request."""
    if ask.request.work is Work.EMBEDDING:
        return False  # its inputs are separate; the worker refuses one that is too long
    pool = (view for view in views.pool_of(ask.request) if may_vanish(view, ask) is None)
    first = next(pool, None)
    return first is not None and ask.never_fits(first) and all(ask.never_fits(view) for view in pool)


def missing_features(views: FleetViews, ask: Ask) -> frozenset[str]:
    """Features that no known worker of the model, live or not, offers together; none when no worker is known."""
    required = ask.request.required_features
    if not required:
        return frozenset()
    checks = speaks_protocol, may_vanish
    offered = [v.status.features for v in views.pool_of(ask.request) if first_rejection(v, ask, checks) is None]
    return min((required - features for features in offered), key=len, default=frozenset())


def eligible(
    views: Pool, ask: Ask, filters: tuple[Filter, ...], rejected: list[tuple[WorkerView, Rejection]]
) -> tuple[list[WorkerView], Counter[Rejection]]:
    """Workers of a pool that pass, and how many were rejected for which reason; ``rejected`` gets some of them."""
    rejections: Counter[Rejection] = Counter()
    able = []
    checks = deciding_filters(ask, filters)
    for view, is_sure in zip(views, ask.surely_fits(views), strict=True):
        if is_sure or (rejection := first_rejection(view, ask, checks)) is None:
            able.append(view)
        else:
            rejections[rejection] += 1
            if len(rejected) < MAX_NAMED:
                rejected.append((view, rejection))
    return able, rejections
