"""Workers that are kept clear of the lowest class while requests of higher classes come.

No request interrupts the step that is under way, so it waits for one wherever lines of batches run.  While a model
gets requests of higher classes, a part of its workers takes none of the lowest; what runs there ends there.

    which     those with labels that these requests' plans name, then those that are clear already, then those with the
              fewest lines, then the emptiest; no spot worker, since only the lowest class runs there
    how many  a part of all that may be chosen: at least one, and never all of them
    until     some seconds after the last such request
    unless    a request could run nowhere else, or has emitted tokens: its KV is worth more than a step
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from stratos.core.placement import PlacementRequest, WorkerRole
from stratos.core.tenant import PLATFORM_TENANT
from stratos.routing.admission import Ask
from stratos.routing.filters import is_candidate
from stratos.routing.fleet_state import OBSERVE_S
from stratos.routing.fleet_views import FleetViews
from stratos.routing.settings import AdmissionConfig
from stratos.routing.worker_view import WorkerView

NONE_CLEAR: frozenset[str] = frozenset()
MAX_POOLS = 256
"""Models come from requests, so their number is bounded; one that is forgotten has all its workers take everything."""


@dataclass(slots=True)
class _ClearPool:
    asked_at: float = -math.inf
    """When the last request of a higher class came."""
    labels: dict[str, float] = field(default_factory=dict)
    """Label of workers -> when a request came whose plan names it."""
    chosen: frozenset[str] = NONE_CLEAR
    chosen_for: frozenset[str] = frozenset()
    """Labels by which they were."""
    counted_at: float = -math.inf


class ClearWorkers:
    """Belongs to one router.

    Args:
        config: how many, and for how long.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._ratio = config.clear_ratio
        self._for_s = config.clear_for_s
        self._pools: dict[tuple[WorkerRole, str], _ClearPool] = {}
        self._last_union = NONE_CLEAR, NONE_CLEAR, NONE_CLEAR

    def note(self, request: PlacementRequest, now: float) -> None:
        """A request came; those of the platform itself, such as probes, do not count."""
        if not self._ratio or request.takes_spot or request.terms.tenant == PLATFORM_TENANT:
            return
        for role in {request.work.role, WorkerRole.PREFILL}:  # its prompt may be computed there
            key = role, request.model_digest
            if key not in self._pools and len(self._pools) >= MAX_POOLS:
                self._pools.clear()
            pool = self._pools.setdefault(key, _ClearPool())
            pool.asked_at = now
            pool.labels.update(dict.fromkeys(request.terms.share.pools, now))

    def apart(self, ask: Ask, views: FleetViews, now: float) -> Ask:
        """The same request with the workers that it has to leave to others."""
        request = ask.request
        if not self._pools or not leaves_some(request):
            return ask
        clear = self.of(request.work.role, request.model_digest, views, now)
        if not clear or not _has_other(ask, views, clear):
            return ask
        return ask.leaving(self._with(clear, self.of(WorkerRole.PREFILL, request.model_digest, views, now)))

    def all(self, views: FleetViews, now: float) -> frozenset[str]:
        """Incarnations that are clear now."""
        return NONE_CLEAR.union(*(self.of(role, model, views, now) for role, model in list(self._pools)))

    def of(self, role: WorkerRole, model_digest: str, views: FleetViews, now: float) -> frozenset[str]:
        """Incarnations that are clear among the workers of one role and model."""
        pool = self._pools.get((role, model_digest))
        if pool is None:
            return NONE_CLEAR
        if now - pool.asked_at > self._for_s:
            del self._pools[role, model_digest]
            return NONE_CLEAR
        are_in = all(map(_is_in, map(views.get, pool.chosen)))
        if now - pool.counted_at >= OBSERVE_S or not are_in:
            pool.counted_at = now
            pool.labels = {label: at for label, at in pool.labels.items() if now - at <= self._for_s}
            self._recount(pool, [view for view in views.pool(role, model_digest) if view.is_in], are_in=are_in)
        return pool.chosen

    def _with(self, decode: frozenset[str], prefill: frozenset[str]) -> frozenset[str]:
        """Both, the same object as long as they are the same: one is hashed once."""
        if not prefill or prefill is decode:
            return decode
        last_decode, last_prefill, both = self._last_union
        if last_decode is not decode or last_prefill is not prefill:
            both = decode | prefill
            self._last_union = decode, prefill, both
        return both

    def _recount(self, pool: _ClearPool, live: list[WorkerView], *, are_in: bool) -> None:
        """Choose again where those that were chosen are not as many, or were chosen for other plans."""
        lasting = [view for view in live if not view.status.is_spot]
        count = max(0, min(len(live) - 1, len(lasting), max(1, int(self._ratio * len(live)))))
        if are_in and len(pool.chosen) == count and pool.chosen_for == pool.labels.keys():
            return

        def order(view: WorkerView) -> tuple[bool, bool, int, int, str]:
            is_unlabelled, is_new = view.status.pool not in pool.labels, view.ref.incarnation not in pool.chosen
            return is_unlabelled, is_new, view.held.num_lowest_seqs, view.num_seqs, view.ref.worker_id

        pool.chosen_for = frozenset(pool.labels)
        pool.chosen = frozenset(view.ref.incarnation for view in heapq.nsmallest(count, lasting, key=order))


def leaves_some(request: PlacementRequest) -> bool:
    """Whether it is of the lowest class, and without tokens whose KV is worth more than a step."""
    return request.takes_spot and not request.is_resumed


def _is_in(view: WorkerView | None) -> bool:
    return view is not None and view.is_in


def _has_other(ask: Ask, views: FleetViews, clear: frozenset[str]) -> bool:
    """Another worker could run it, if not now then once it has room."""
    return any(view.ref.incarnation not in clear and is_candidate(view, ask) for view in views.pool_of(ask.request))
