"""One router on the timeline: the real dispatcher over the real fleet state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from stratos.core.cache_changes import CacheChanges
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from stratos.sim.timeline import Timeline

QUEUE = QueueConfig(max_requests=1 << 20, max_tokens=1 << 40, ttl_s=1e9, shed_from_pressure=1.0)
"""Nothing is shed: a trace is measured to its end."""
ADMISSION = AdmissionConfig(max_waiting_per_worker=0)
"""Ends are known at once, so that no worker needs a queue of its own."""
BOOKINGS = BookingConfig(flight_s=0.0, report_s=0.0)
"""Placements and ends take no time on their way."""
LIVENESS = LivenessConfig(silent_after_s=math.inf, hung_after_s=math.inf)
"""Workers report when something changes, and none dies."""
MAX_INDEXED_BLOCKS = 1 << 20


class SimRouter:
    """Places requests as soon as a worker has room for them.

    Args:
        config: of the policies.
        timeline: the fleet's clock.
        seed: breaks ties.
        on_placed: called with each request and its placement.
        admission: bounds of workers.
    """

    def __init__(
        self,
        config: RoutingPoliciesConfig,
        timeline: Timeline,
        seed: int,
        on_placed: Callable[[PlacementRequest, Placement], None],
        admission: AdmissionConfig = ADMISSION,
    ) -> None:
        self._timeline, self._on_placed = timeline, on_placed
        self._fleet = FleetState(LIVENESS, BookingLedger(BOOKINGS))
        policies = replace(config, max_indexed_blocks=MAX_INDEXED_BLOCKS)
        self._dispatcher = Dispatcher(
            self._fleet, DispatchConfig(queue=QUEUE, admission=admission, policies=policies), Random(seed)
        )
        self._is_turn_due = False

    def set_workers(self, workers: Iterable[WorkerRef]) -> None:
        """These are the workers."""
        self._fleet.set_members([Member(ref.worker_id, ref.address, ref.role) for ref in workers])

    def schedule(self, request: PlacementRequest) -> None:
        """A request arrives. Raises like ``Dispatcher.push``."""
        self._dispatcher.push(request, self._timeline.now())
        self._wake()

    def on_report(self, status: WorkerStatus, changes: CacheChanges) -> None:
        """A worker reports its status, and what its cache stored and removed."""
        self._dispatcher.on_status(status.ref.worker_id, status, self._timeline.now())
        self._dispatcher.policies.index.apply(status.ref.incarnation, changes)
        self._wake()

    def complete(self, handoff_id: str, num_output_tokens: int) -> None:
        """A request ended."""
        self._dispatcher.complete(handoff_id, Outcome.FINISHED, num_output_tokens, self._timeline.now())
        self._wake()

    def _wake(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._timeline.at(self._timeline.now(), self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        for ticket, answer in self._dispatcher.turn(self._timeline.now()):
            if not isinstance(answer, Placement):
                raise answer
            self._on_placed(ticket.request, answer)
