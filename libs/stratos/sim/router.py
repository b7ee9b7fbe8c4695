"""One router over simulated workers: the real queue, bookings, admission and policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

from stratos.core.cache_changes import CacheChanges
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import PlacementRequest, WorkerRef
from stratos.routing.admission import OutputLengths, make_ask
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.class_queue import Ticket, Verdict
from stratos.routing.picker import Choice, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.routing.policy.settings import PoliciesConfig
from stratos.routing.queue import PlacementQueue
from stratos.routing.settings import AdmissionConfig, BookingConfig, QueueConfig
from stratos.routing.worker_view import WorkerView
from stratos.sim.timeline import Timeline

QUEUE = QueueConfig(max_requests=1 << 20, max_tokens=1 << 40, ttl_s=1e9)
"""Nothing is shed: a trace is measured to its end."""
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
        config: PoliciesConfig,
        timeline: Timeline,
        seed: int,
        on_placed: Callable[[PlacementRequest, WorkerRef, str], None],
    ) -> None:
        self.index = PrefixIndex(MAX_INDEXED_BLOCKS)
        self._policies = Policies(config, self.index)
        self._timeline, self._rng, self._on_placed = timeline, Random(seed), on_placed
        self._admission = AdmissionConfig()
        self._lengths = OutputLengths(self._admission.default_output_tokens)
        self._queue = PlacementQueue(QUEUE)
        self._bookings = BookingLedger(BookingConfig())
        self._views: dict[str, WorkerView] = {}
        self._numbers = itertools.count()
        self._is_turn_due = False

    def schedule(self, request: PlacementRequest) -> None:
        """A request arrives."""
        self._queue.push(request, self._timeline.now(), output_tokens=request.max_tokens)
        self._wake()

    def on_report(self, status: WorkerStatus, changes: CacheChanges) -> None:
        """A worker told its status and what its cache stored and removed."""
        incarnation = status.ref.incarnation
        self._bookings.on_status(status, self._timeline.now())
        self.index.apply(incarnation, changes)
        self._views[incarnation] = self._view(WorkerView(ref=status.ref, status=status))
        self._wake()

    def complete(self, handoff_id: str, num_output_tokens: int) -> None:
        """A request ended."""
        booking = self._bookings.end(handoff_id)
        if booking is not None:
            self._lengths.add(booking.request.model_digest, num_output_tokens)
            self._booked(booking.decode_incarnation)
        self._wake()

    def _wake(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._timeline.at(self._timeline.now(), self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        for found in self._queue.dispatch(self._timeline.now(), self._place):
            worker, handoff_id = found.result
            self._on_placed(found.ticket.request, worker, handoff_id)

    def _place(self, ticket: Ticket) -> tuple[WorkerRef, str] | Verdict:
        ask = make_ask(ticket.request, self._lengths, self._admission)
        choice = choose(tuple(self._views.values()), ask, self._policies, self._rng)
        if not isinstance(choice, Choice):
            return Verdict.BLOCKED
        worker, handoff_id = choice.worker, f"handoff-{next(self._numbers)}"
        self._bookings.add(
            Booking(
                handoff_id=handoff_id,
                request=ticket.request,
                decode_incarnation=worker.ref.incarnation,
                num_blocks=ask.num_blocks(worker.status.block_size),
                at=self._timeline.now(),
            )
        )
        self._booked(worker.ref.incarnation)
        return worker.ref, handoff_id

    def _booked(self, incarnation: str) -> None:
        self._views[incarnation] = self._view(self._views[incarnation])

    def _view(self, view: WorkerView) -> WorkerView:
        incarnation, bookings = view.ref.incarnation, self._bookings
        return replace(
            view,
            fresh=bookings.fresh(incarnation),
            held=bookings.held(incarnation),
            num_ended_seqs=bookings.num_ended_seqs(incarnation),
        )
