"""A fleet in front of the real queue, admission, choice and reservations, on a clock that is stepped.

Workers run what they are given for a time drawn per request and report what they run at every step.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stratos.core.placement import PlacementRequest
from stratos.routing.admission import Ask
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.dispatch.isolation import SuspectHolds
from stratos.routing.dispatch.placer import Placer
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.settings import AdmissionConfig, BookingConfig, QueueConfig, SuspectConfig
from stratos.routing.worker_view import WorkerView
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

STEP_S = 0.1


@dataclass
class SimWorker:
    name: str
    max_num_seqs: int
    num_blocks: int
    running: dict[str, Booking] = field(default_factory=dict)
    num_seqs: int = 0
    num_used_blocks: int = 0


@dataclass
class Placed:
    """A request that was placed."""

    request: PlacementRequest
    worker: str
    at_s: float
    waited_s: float


class PlacementSimulation:
    """One router over workers of one model; every request runs between ``service_s[0]`` and ``service_s[1]``."""

    def __init__(
        self,
        num_workers: int,
        max_num_seqs: int,
        *,
        num_blocks: int = 100_000,
        service_s: tuple[float, float] = (2.0, 6.0),
        seed: int = 1,
    ) -> None:
        self.now = 0.0
        self.workers = [SimWorker(f"w{index}", max_num_seqs, num_blocks) for index in range(num_workers)]
        self.placed: list[Placed] = []
        self.expired: list[Ticket] = []
        self.occupancy: list[float] = []
        """Share of all places (batch slots and short queues) that were taken, at every step."""
        self._service_s = service_s
        self._random = Random(seed)
        self._admission = AdmissionConfig()
        self._bookings = BookingLedger(BookingConfig())
        self._placer = Placer(
            Reservations(self._bookings), SuspectHolds(SuspectConfig()), Policies(RoutingPoliciesConfig()), Random(seed)
        )
        self._queue = PlacementQueue(QueueConfig(max_requests=100_000))
        self._ends: list[tuple[float, str]] = []
        self._numbers = itertools.count()
        self._version = 0
        self._known: dict[str, WorkerView] = {}
        """Views of workers on which nothing has changed."""

    def push(self, **changes: Any) -> Ticket:
        """Queue a request."""
        request = make_request(f"req-{next(self._numbers)}", **changes)
        return self._queue.push(request, self.now)[0]

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def keep_backlog(self, num_requests: int, num_tenants: int = 5) -> None:
        """Fill the queue up with single requests of some tenants."""
        while len(self._queue) < num_requests:
            self.push(tenant=f"t{self._random.randrange(num_tenants)}")

    def step(self) -> None:
        """Let requests end, report, place and expire; then time passes."""
        while self._ends and self._ends[0][0] <= self.now:
            self._end(heapq.heappop(self._ends)[1])
        for worker in self.workers:
            self._bookings.on_status(self._status(worker), self.now)
        self._known.clear()
        self._version += 1
        for _ in self._queue.dispatch(self.now, self._place, self._reserve):
            pass
        self.expired += self._queue.expire(self.now)
        places = sum(w.max_num_seqs + self._admission.max_waiting_per_worker for w in self.workers)
        self.occupancy.append(sum(worker.num_seqs for worker in self.workers) / places)
        self.now = round(self.now + STEP_S, 6)

    def placed_by_tenant(self, since_s: float = 0.0) -> Counter[str]:
        """Sequences placed, per tenant."""
        counts: Counter[str] = Counter()
        for placed in self.placed:
            if placed.at_s >= since_s:
                counts[placed.request.terms.tenant] += placed.request.num_choices
        return counts

    def _status(self, worker: SimWorker) -> Any:
        return make_status(
            worker.name,
            num_running=min(worker.num_seqs, worker.max_num_seqs),
            num_waiting=max(0, worker.num_seqs - worker.max_num_seqs),
            max_num_seqs=worker.max_num_seqs,
            blocks=ledger(worker.num_blocks, allocated=worker.num_used_blocks),
        )

    def _views(self) -> list[WorkerView]:
        for worker in self.workers:
            if worker.name not in self._known:
                status = self._status(worker)
                held = self._bookings.held(status.ref.incarnation)
                self._known[worker.name] = WorkerView(ref=status.ref, status=status, held=held)
        return list(self._known.values())

    def _ask(self, ticket: Ticket) -> Ask:
        return Ask(request=ticket.request, max_waiting_per_worker=self._admission.max_waiting_per_worker)

    def _place(self, ticket: Ticket) -> str | PlacementVerdict:
        ask = self._ask(ticket)
        choice = self._placer.choose(ticket, ask, FleetViews(self._views()), self._version)
        if not isinstance(choice, EndpointChoice):
            return choice
        self._version += 1
        worker = next(w for w in self.workers if w.name == choice.worker.ref.worker_id)
        booking = Booking(
            handoff_id=ticket.request.request_id,
            request=ticket.request,
            decode_incarnation=choice.worker.ref.incarnation,
            num_blocks=ask.need(choice.worker).num_blocks,
            at=self.now,
        )
        self._bookings.add(booking)
        worker.running[booking.handoff_id] = booking
        worker.num_seqs += booking.decode_load.num_seqs
        worker.num_used_blocks += booking.num_blocks
        del self._known[worker.name]
        heapq.heappush(self._ends, (self.now + self._random.uniform(*self._service_s), booking.handoff_id))
        self.placed.append(Placed(ticket.request, worker.name, self.now, self.now - ticket.arrived))
        return worker.name

    def _reserve(self, ticket: Ticket) -> None:
        self._placer.reserve(ticket, self._ask(ticket), FleetViews(self._views()))

    def _end(self, handoff_id: str) -> None:
        self._bookings.end(handoff_id, self.now)
        for worker in self.workers:
            if (booking := worker.running.pop(handoff_id, None)) is not None:
                worker.num_seqs -= booking.decode_load.num_seqs
                worker.num_used_blocks -= booking.num_blocks
