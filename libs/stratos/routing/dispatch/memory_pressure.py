"""Memory pressure: how full the KV pools of a model are, and which new requests are refused for it.

    pressure = blocks taken or promised / all blocks, over the model's live decode workers
    a new request of the lowest class is refused with the probability (pressure - from) / (1 - from), and never below

Streams that have begun need the room that is left to grow, and more urgent classes to get in.  A ramp refuses a few
early in place of all at once, so clients that come back find a system that went on.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from stratos.core.placement import PlacementRequest, Work, WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.fleet_views import FleetViews
from stratos.routing.worker_view import WorkerView

LOOK_S = 0.05
"""A pressure holds for so long: summing over hundreds of workers costs as much as a decision."""
MAX_MODELS = 256
"""Models come from requests, so their number is bounded."""


class MemoryPressure:
    """Belongs to one thread.

    Args:
        from_pressure: where the ramp begins; 1 refuses nothing.
        rng: draws who is refused.
    """

    def __init__(self, from_pressure: float, rng: Random) -> None:
        self._from = from_pressure
        self._rng = rng
        self._looked: dict[str, tuple[float, float]] = {}
        """Model -> when it was looked at, and its pressure then."""

    def sheds(self, request: PlacementRequest, views: FleetViews, now: float) -> bool:
        """Whether a request is refused; never one that has begun, nor inputs to embed, which hold no blocks."""
        is_exempt = request.is_move or request.is_resumed or request.work is Work.EMBEDDING
        if is_exempt or request.terms.priority_class < BATCH_CLASS or self._from >= 1:
            return False
        over = self._pressure(request.model_digest, views, now) - self._from
        return over > 0 and self._rng.random() < over / (1 - self._from)

    def _pressure(self, model_digest: str, views: FleetViews, now: float) -> float:
        looked_at, pressure = self._looked.get(model_digest, (float("-inf"), 0.0))
        if now - looked_at >= LOOK_S:
            pressure = pressure_of(views.pool(WorkerRole.DECODE, model_digest))
            if len(self._looked) >= MAX_MODELS:
                self._looked.clear()
            self._looked[model_digest] = now, pressure
        return pressure


def pressure_of(pool: Iterable[WorkerView]) -> float:
    """Part of the KV blocks of a pool's live workers that is taken or promised; 0 where none lives."""
    live = [view for view in pool if view.is_in]
    total = sum(view.status.engine.blocks.total for view in live)
    return 1.0 - sum(view.free_kv_ratio * view.status.engine.blocks.total for view in live) / total if total else 0.0


def pressures(views: FleetViews) -> dict[str, float]:
    """The pressure of every model."""
    return {model: pressure_of(views.pool(WorkerRole.DECODE, model)) for model in views.models(WorkerRole.DECODE)}
