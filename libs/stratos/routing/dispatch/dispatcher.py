"""The dispatcher: everything that one router decides, without waiting and with the time passed in.

Life of a request: ``push`` -> refused at once, or a ticket in the queue -> exactly one of: ``turn`` answers it (placed,
or its time is over), a later ``push`` displaces it, ``exchange_convictions`` or ``drain`` refuses it, ``withdraw``
takes it out because its caller left.  A placement is booked until ``complete``.

The router's service waits for these answers; the simulator takes them as they come.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random

from stratos.common.bugs import report_bug
from stratos.common.errors import Draining, StratosError
from stratos.core.fleet import FleetWorker, QueueDepth, WorkerStatus
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos.core.requests.convictions import ConvictionConfig, ConvictionTable, ConvictionUpdate, prompt_refused
from stratos.routing.admission import Ask
from stratos.routing.bookings import Booking
from stratos.routing.dispatch.booking_desk import BookingDesk
from stratos.routing.dispatch.clear_workers import ClearWorkers
from stratos.routing.dispatch.explanations import Explanations
from stratos.routing.dispatch.fleet_bounds import FleetBounds
from stratos.routing.dispatch.intake import Intake, check_request
from stratos.routing.dispatch.isolation import SuspectHolds
from stratos.routing.dispatch.memory_pressure import MemoryPressure, pressures
from stratos.routing.dispatch.placer import Placer
from stratos.routing.filters import Rejection
from stratos.routing.fleet_state import FleetState
from stratos.routing.picker import EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.overflow import wait_too_long
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import Dispatched, PlacementVerdict, Ticket
from stratos.routing.settings import AdmissionConfig, QueueConfig, SuspectConfig

_log = logging.getLogger(__name__)
LEAVING = "the router is leaving; ask another one"
MAX_EXPIRED = 64
"""Requests whose time is over that a bounded turn answers: they may be thousands at once, and each takes 40 µs."""
Answer = tuple[Ticket, Placement | StratosError]
"""End of a ticket's wait."""
IsOpen = Callable[[Ticket], bool]
"""Whether the caller of a ticket still waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """Numbers of the rules."""

    queue: QueueConfig = field(default_factory=QueueConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    suspects: SuspectConfig = field(default_factory=SuspectConfig)
    convictions: ConvictionConfig = field(default_factory=ConvictionConfig)
    policies: RoutingPoliciesConfig = field(default_factory=RoutingPoliciesConfig)


class Dispatcher:
    """Queue, policies and bookings of one router.

    Args:
        fleet: workers.
        config: of the rules.
        rng: breaks ties.
    """

    def __init__(self, fleet: FleetState, config: DispatchConfig, rng: Random) -> None:
        self.policies = Policies(config.policies)
        self.fleet = fleet
        self._queue = PlacementQueue(config.queue)
        self._intake = Intake(fleet, self._queue, MemoryPressure(config.queue.shed_from_pressure, rng))
        self._max_waiting_per_worker = config.admission.max_waiting_per_worker
        self._clear = ClearWorkers(config.admission)
        self._suspects = SuspectHolds(config.suspects)
        self._convictions = ConvictionTable(config.convictions)
        reservations = Reservations(fleet.bookings)
        self._placer = Placer(reservations, self._suspects, self.policies, rng)
        self._bounds = FleetBounds(fleet, reservations, self._placer, self._ask, self._clear)
        self._desk = BookingDesk(fleet, self._suspects, self.policies)
        self._rng = rng
        self._is_draining = False

    def push(self, request: PlacementRequest, now: float) -> tuple[Ticket, list[Answer]]:
        """Queue a request.

        Returns:
            Its ticket, and the answers to those that had to leave the queue for it.

        Raises:
            BadRequest: the request is malformed.
            FeatureUnavailable: no known worker of the model offers what it needs.
            ContextLengthExceeded: no known worker of the model could ever hold it.
            Overloaded: the queue is full, or the KV pools nearly are.
            PromptRefused: the prompt is convicted.
            WaitTooLong: the request may go elsewhere, and would wait longer than it allows.
            Draining: the router is leaving.
        """
        if self._is_draining:
            raise Draining(LEAVING)
        check_request(request)
        if self._convictions.holds(*_prompt_of(request), now):
            raise prompt_refused()
        self._clear.note(request, now)
        ask = Ask(request=request, max_waiting_per_worker=self._max_waiting(request))
        ticket, displaced = self._intake.push(ask, now)
        ticket.ask = ask
        return ticket, [self._refused(victim, error, now) for victim, error in displaced]

    def turn(self, now: float, is_open: IsOpen = lambda _: True, most: int | None = None) -> Iterator[Answer]:
        """Place what can be placed, and fail what has waited too long.

        Args:
            now: monotonic seconds.
            is_open: whether the caller of a ticket still waits; one that has left may call ``withdraw`` only later.
            most: placements of this turn, which is bounded then; the next one goes on with what is left.
        """
        self.fleet.observe(now)
        self._suspects.expire(now)
        self._queue.note_positions(now)
        self._bounds.begin(now)
        place, reserve = partial(self._place, now, is_open), partial(self._reserve, now)
        placed: Iterator[Dispatched[Placement | StratosError]]
        placed = self._queue.dispatch(now, place, reserve, self._bounds)
        for found in islice(placed, most):
            yield found.ticket, found.result
        if expired := self._queue.expire(now, self._is_woken_for, None if most is None else MAX_EXPIRED):
            explanations = Explanations(self.fleet.views(now), self.policies, self._rng)
            for ticket in expired:
                ask = self._clear.apart(self._ask(ticket), self.fleet.views(now), now)
                ask = ask.closing(ask.clear)
                error = wait_too_long(ticket, now) or explanations.timeout(ask, now - ticket.arrived)
                error.after_s = self._queue.wait_s(ticket.request, now)
                yield self._refused(ticket, error, now)

    def _is_woken_for(self, request: PlacementRequest) -> bool:
        return not self.fleet.has_worker(request.work.role, request.model_digest)

    def withdraw(self, ticket: Ticket, placement: Placement | None, now: float) -> None:
        """A caller left: its ticket goes, or the placement that it has not seen, at no cost to its tenant."""
        if not self._queue.remove(ticket) and placement is not None:
            self._desk.end(placement.handoff_id, Outcome.CANCELLED, now)
            self._queue.refund(ticket.request)

    def complete(self, handoff_id: str, outcome: Outcome, num_output_tokens: int | None, now: float) -> Booking | None:
        """An attempt ended, or a suspect has settled; returns the booking of an ended one. Unknown ids are ignored."""
        booking = self._desk.end(handoff_id, outcome, now)
        if booking is not None and outcome is Outcome.FAILED and not num_output_tokens:
            self._queue.refund(booking.request)  # refused, or lost before it made anything
        return booking

    def on_status(self, worker_id: str, status: WorkerStatus, now: float) -> bool:
        """A worker reports; whether what placements depend on may have changed."""
        if status.service_marks:
            self._queue.follow(status.identity.model_digest, status.service_marks)
            status = replace(status, service_marks=())  # told once
        has_changed = self.fleet.on_status(worker_id, status, now)
        self._queue.charge_output(status.identity.model_digest, status.tenant_tokens)
        return has_changed

    def exchange_convictions(self, update: ConvictionUpdate, now: float) -> tuple[ConvictionUpdate, list[Answer]]:
        """Take over what a gateway knows; returns what the gateway has not seen, and the refusals of what waits."""
        table = self._convictions
        others = table.since(update.cursor if update.incarnation == self.fleet.router else 0, now)
        new = {(conviction.tenant, conviction.prompt_digest) for conviction in table.add_all(update.convictions, now)}
        waiting = [ticket for ticket in self._queue.tickets() if _prompt_of(ticket.request) in new] if new else []
        removed = [ticket for ticket in waiting if self._queue.remove(ticket)]
        refused = [self._refused(ticket, prompt_refused(), now) for ticket in removed]
        answer = ConvictionUpdate(incarnation=self.fleet.router, cursor=table.version, convictions=others)
        return answer, refused

    def drain(self) -> list[Answer]:
        """Refuse new requests; returns the answers that send those that wait elsewhere."""
        self._is_draining = True
        return [(ticket, Draining(LEAVING)) for ticket in self._queue.clear()]

    def depths(self, now: float) -> list[QueueDepth]:
        """Queues with waiting requests."""
        return self._queue.depths(now)

    def workers(self, now: float) -> tuple[FleetWorker, ...]:
        """The fleet, with those that are kept clear of the lowest class now."""
        found = self.fleet.workers(now)
        clear = self._clear.all(self.fleet.views(now), now)
        return tuple(replace(one, is_clear=one.ref.incarnation in clear) for one in found) if clear else found

    def pressures(self, now: float) -> dict[str, float]:
        """How full the KV pools of each model are."""
        return pressures(self.fleet.views(now))

    def take_rejections(self) -> Counter[Rejection]:
        """Workers that refused tries did not go to, by reason, since the last call."""
        return self._placer.take_rejections()

    def _refused(self, ticket: Ticket, error: StratosError, now: float) -> Answer:
        error.queue_samples = self._queue.samples_at_end(ticket, now)
        return ticket, error

    def _place(self, now: float, is_open: IsOpen, ticket: Ticket) -> Placement | StratosError | PlacementVerdict:
        if not is_open(ticket):
            return PlacementVerdict.INELIGIBLE  # its caller is about to leave
        try:
            return self._try(now, ticket)
        except Exception:  # it would end this router, and then the one that its gateway asks next
            return report_bug(_log, f"in the placement of request {ticket.request.request_id}")

    def _try(self, now: float, ticket: Ticket) -> Placement | PlacementVerdict:
        views = self.fleet.views(now)
        ask = self._clear.apart(self._ask(ticket), views, now)
        preferred = self._desk.preferred_prefill(ticket.request)
        choice = self._placer.choose(ticket, ask, views, self.fleet.version, preferred_prefill=preferred)
        if not isinstance(choice, EndpointChoice):
            return choice
        return self._desk.book(choice, ticket, ask.need(choice.worker).num_blocks, now, self._queue.tag(ticket))

    def _reserve(self, now: float, ticket: Ticket) -> None:
        views = self.fleet.views(now)
        self._placer.reserve(ticket, self._clear.apart(self._ask(ticket), views, now), views)

    def _ask(self, ticket: Ticket) -> Ask:
        """The same as before, unless the first prefill worker of the model came or the last one went."""
        max_waiting = self._max_waiting(ticket.request)
        if ticket.ask is None or ticket.ask.max_waiting_per_worker != max_waiting:
            ticket.ask = Ask(request=ticket.request, max_waiting_per_worker=max_waiting)
        return ticket.ask

    def _max_waiting(self, request: PlacementRequest) -> int:
        return 0 if self.fleet.has_prefill(request.model_digest) else self._max_waiting_per_worker


def _prompt_of(request: PlacementRequest) -> tuple[str, bytes]:
    return request.terms.tenant, request.prompt_digest
