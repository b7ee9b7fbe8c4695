"""Which workers a request is kept away from: those it had trouble with, and those that a suspect could take along.

A suspect (``PlacementRequest.is_suspect``) may be what killed a worker.  It goes to a worker without another suspect,
so that a second death convicts it alone, and without prefill workers, so that it can take no third one along.  It is
held there until it has settled or ended, for at most ``SuspectConfig.hold_s``.  In this time other requests go
elsewhere if there is an elsewhere, and those with the same prompt wait for its verdict.

A worker that is excluded by a request is avoided while another one serves the model; one that only stood still is
avoided until it has moved.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.placement import PlacementRequest
from stratos.routing.fleet_views import FleetViews
from stratos.routing.settings import SuspectConfig


@dataclass(frozen=True, slots=True)
class _Hold:
    request: PlacementRequest
    incarnation: str
    until: float


class SuspectHolds:
    """Suspects that have neither settled nor ended; each one has a worker to itself.

    Args:
        config: how long a hold lives at most, for gateways that die.
    """

    def __init__(self, config: SuspectConfig) -> None:
        self._hold_s = config.hold_s
        self._holds: dict[str, _Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, handoff_id: str, request: PlacementRequest, incarnation: str, now: float) -> None:
        """A suspect was placed."""
        self._holds[handoff_id] = _Hold(request, incarnation, now + self._hold_s)

    def release(self, handoff_id: str) -> None:
        """It has settled, or its attempt ended; other ids are ignored."""
        self._holds.pop(handoff_id, None)

    def expire(self, now: float) -> None:
        """Drop holds whose ends were never reported."""
        for handoff_id in [name for name, hold in self._holds.items() if hold.until <= now]:
            del self._holds[handoff_id]

    def has_prompt_of(self, request: PlacementRequest) -> bool:
        """The same prompt of the tenant is under suspicion."""
        prompt, tenant = request.prompt_digest, request.terms.tenant
        return any(
            hold.request.prompt_digest == prompt and hold.request.terms.tenant == tenant
            for hold in self._holds.values()
            if prompt
        )

    def workers(self) -> frozenset[str]:
        """Incarnations that hold a suspect."""
        return frozenset(hold.incarnation for hold in self._holds.values())


def still_excluded(request: PlacementRequest, views: FleetViews, asked_at: float) -> frozenset[str]:
    """The workers that a request avoids, without those that stood still and have moved since its call arrived."""
    hung = request.hung_incarnations
    if not hung:
        return request.excluded_incarnations
    known = [view for view in map(views.get, hung) if view is not None]
    return request.excluded_incarnations - {view.ref.incarnation for view in known if view.moved_at > asked_at}
