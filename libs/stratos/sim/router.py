"""One router over simulated workers: the real queue, bookings, admission and policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

from stratos.core.cache_changes import CacheChanges
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import PlacementRequest, WorkerRef
from stratos.routing.admission import Ask
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.fleet_views import FleetViews
from stratos.routing.isolation import SuspectHolds
from stratos.routing.picker import EndpointChoice
from stratos.routing.placer import Placer
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.class_queue import PlacementVerdict, Ticket
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.settings import BookingConfig, QueueConfig, SuspectConfig
from stratos.routing.worker_view import WorkerView
from stratos.sim.timeline import Timeline

QUEUE = QueueConfig(max_requests=1 << 20, max_tokens=1 << 40, ttl_s=1e9)
"""Nothing is shed: a trace is measured to its end."""
BOOKINGS = BookingConfig(flight_s=0.0, report_s=0.0)
"""Placements and ends take no time on their way."""
MAX_INDEXED_BLOCKS = 1 << 20


class SimRouter:
    """Places requests as soon as a worker has room for them.

    Args:
        config: of the policies.
        timeline: the fleet's clock.
        seed: breaks ties.
        on_placed: told of each placement.
    """

    def __init__(
        self,
        config: RoutingPoliciesConfig,
        timeline: Timeline,
        seed: int,
        on_placed: Callable[[PlacementRequest, WorkerRef, str], None],
    ) -> None:
        self.index = PrefixIndex(MAX_INDEXED_BLOCKS)
        self._timeline, self._on_placed = timeline, on_placed
        self._queue = PlacementQueue(QUEUE)
        self._bookings = BookingLedger(BOOKINGS)
        self._placer = Placer(
            Reservations(self._bookings), SuspectHolds(SuspectConfig()), Policies(config, self.index), Random(seed)
        )
        self._views = FleetViews()
        self._version = 0
        self._numbers = itertools.count()
        self._is_turn_due = False

    def schedule(self, request: PlacementRequest) -> None:
        """A request arrives."""
        self._queue.push(request, self._timeline.now())
        self._wake()

    def on_report(self, status: WorkerStatus, changes: CacheChanges) -> None:
        """A worker told its status and what its cache stored and removed."""
        incarnation = status.ref.incarnation
        self._bookings.on_status(status, self._timeline.now())
        self.index.apply(incarnation, changes)
        self._set_view(WorkerView(ref=status.ref, status=status))
        self._wake()

    def complete(self, handoff_id: str) -> None:
        """A request ended."""
        booking = self._bookings.end(handoff_id, self._timeline.now(), has_finished=True)
        if booking is not None:
            self._booked(booking.decode_incarnation)
        self._wake()

    def _wake(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._timeline.at(self._timeline.now(), self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        for found in self._queue.dispatch(self._timeline.now(), self._place, self._reserve):
            worker, handoff_id = found.result
            self._on_placed(found.ticket.request, worker, handoff_id)

    def _place(self, ticket: Ticket) -> tuple[WorkerRef, str] | PlacementVerdict:
        ask = self._ask(ticket)
        choice = self._placer.choose(ticket, ask, self._views, self._version)
        if not isinstance(choice, EndpointChoice):
            return choice
        worker, handoff_id = choice.worker, f"handoff-{next(self._numbers)}"
        self._bookings.add(
            Booking(
                handoff_id=handoff_id,
                request=ticket.request,
                decode_incarnation=worker.ref.incarnation,
                num_blocks=ask.need(worker).num_blocks,
                at=self._timeline.now(),
            )
        )
        self._booked(worker.ref.incarnation)
        return worker.ref, handoff_id

    def _reserve(self, ticket: Ticket) -> None:
        self._placer.reserve(ticket, self._ask(ticket), self._views)

    def _ask(self, ticket: Ticket) -> Ask:
        return Ask(request=ticket.request)  # ends are known at once, so that no worker needs a queue of its own

    def _booked(self, incarnation: str) -> None:
        if (view := self._views.get(incarnation)) is not None:
            self._set_view(view)

    def _set_view(self, view: WorkerView) -> None:
        incarnation, bookings = view.ref.incarnation, self._bookings
        self._version += 1
        self._views.put(
            replace(
                view,
                fresh=bookings.fresh(incarnation),
                held=bookings.held(incarnation),
                num_ended_seqs=bookings.num_ended_seqs(incarnation),
            )
        )
