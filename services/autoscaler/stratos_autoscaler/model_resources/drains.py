"""How long Models that leave wait for the requests of their workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos_autoscaler.model_resources.observed import ObservedModel

IDLE_S = 5.0
"""Gateways may send requests until all have read that the Model is gone."""
CountRequests = Callable[[Collection[str], str], Awaitable[int | None]]
"""Requests at workers with these ids, or that wait for a model with this digest; ``None``: not known."""


@dataclass(slots=True)
class _Wait:
    begun_s: float
    idle_from_s: float | None = None


class Drains:
    """Belongs to the event loop.

    Args:
        count: asks the routers.
        longest_s: requests that run longer end with their workers.
        clock: monotonic.
    """

    def __init__(self, count: CountRequests, longest_s: float, clock: Clock) -> None:
        self._count = count
        self._longest_s = longest_s
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    async def look(self, uid: str, observed: ObservedModel, digest: str) -> ObservedModel:
        """Add the requests of a Model whose records are gone; 0 once it was idle for a while."""
        now = self._clock.now()
        wait = self._waits.setdefault(uid, _Wait(now))
        try:
            num_busy = await self._count({pod["metadata"]["name"] for pod in observed.pods}, digest)
        except StratosError:
            num_busy = None
        if num_busy != 0:
            wait.idle_from_s = None
        elif wait.idle_from_s is None:
            wait.idle_from_s = now
        is_idle = wait.idle_from_s is not None and now - wait.idle_from_s >= IDLE_S
        num_busy = num_busy if num_busy or num_busy is None else 0 if is_idle else None
        return replace(observed, num_busy=num_busy, is_patient=now - wait.begun_s < self._longest_s)

    def keep(self, uids: Collection[str]) -> None:
        """Forget Models that are gone."""
        self._waits = {uid: wait for uid, wait in self._waits.items() if uid in uids}
