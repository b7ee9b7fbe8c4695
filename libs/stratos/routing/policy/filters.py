"""Which workers a policy looks at: each filter narrows the candidates, and never to none.

They say what is preferred, not what is possible: what is possible is in ``stratos.routing.filters``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from stratos.routing.policy.scorers import ScoringContext
from stratos.routing.worker_view import WorkerView

CROWD_SEQS = 4
"""Sequences above the emptiest candidate that do not make a worker crowded."""

PolicyFilter = Callable[[Sequence[WorkerView], ScoringContext], Sequence[WorkerView]]


def keep_adapter(views: Sequence[WorkerView], context: ScoringContext) -> Sequence[WorkerView]:
    """Workers with the adapter in their cache."""
    digest = context.request.terms.adapter.digest
    return [view for view in views if digest in view.status.resident_adapters] if digest else views


def keep_zone(views: Sequence[WorkerView], context: ScoringContext) -> Sequence[WorkerView]:
    """Workers of the zone that is wanted, and those that name none."""
    zone = context.zone
    return [view for view in views if view.status.zone in ("", zone)] if zone else views


def keep_region(views: Sequence[WorkerView], context: ScoringContext) -> Sequence[WorkerView]:
    """Workers of the region that is wanted, and those that name none: older builds have no word for it."""
    region = context.region
    return [view for view in views if view.status.region in ("", region)] if region else views


def keep_uncrowded(views: Sequence[WorkerView], context: ScoringContext) -> Sequence[WorkerView]:
    """Workers with at most twice the sequences of the emptiest one, and ``CROWD_SEQS``."""
    num_seqs = [view.num_seqs for view in views]
    most = 2 * min(num_seqs) + CROWD_SEQS
    return [view for view, num in zip(views, num_seqs, strict=True) if num <= most]


FILTERS: MappingProxyType[str, PolicyFilter] = MappingProxyType(
    {
        "adapter": keep_adapter,
        "zone": keep_zone,
        "region": keep_region,
        "uncrowded": keep_uncrowded,
    }
)


def narrow(
    views: Sequence[WorkerView], filters: Sequence[PolicyFilter], context: ScoringContext
) -> Sequence[WorkerView]:
    """Apply filters in order, without those that would leave no worker."""
    for keep in filters:
        views = keep(views, context) or views
    return views
