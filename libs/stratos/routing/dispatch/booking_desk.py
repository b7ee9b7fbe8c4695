"""Booking desk: a choice becomes a placement that is booked until its attempt ends."""

from __future__ import annotations

from collections import OrderedDict

from stratos.core.cache_changes import CacheLayout
from stratos.core.placement import Outcome, Placement, PlacementRequest, ServiceTag, WorkerRole, new_handoff_id
from stratos.routing.bookings import Booking
from stratos.routing.dispatch.isolation import SuspectHolds
from stratos.routing.fleet_state import FleetState
from stratos.routing.picker import MAX_NAMED, Considered, EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.worker_view import WorkerView


class BookingDesk:
    """Books what was chosen, and ends bookings.

    Args:
        fleet: workers, with the ledger of bookings.
        suspects: where suspects are.
        policies: of the pools; where they look at prefix caches, a placement has the layout that names its blocks.
    """

    def __init__(self, fleet: FleetState, suspects: SuspectHolds, policies: Policies) -> None:
        self._fleet = fleet
        self._suspects = suspects
        self._names_blocks = any(policies.uses_index(role) for role in WorkerRole)
        self._prefill_memory = PrefillMemory()

    def preferred_prefill(self, request: PlacementRequest) -> str:
        """The prefill worker that has computed the prompt of a request that moves; empty when that is not known."""
        return self._prefill_memory.recall(request.request_id) if request.is_move else ""

    def book(
        self, choice: EndpointChoice, ticket: Ticket, num_blocks: int, now: float, tag: ServiceTag | None = None
    ) -> Placement:
        """Take the chosen workers for a request; ``tag`` goes to the routers that stand by."""
        handoff_id, request = new_handoff_id(self._fleet.router, tag), ticket.request
        worker = choice.worker.ref.incarnation
        source = choice.prefill[0].ref.incarnation if choice.decode and choice.prefill else ""
        if source:
            self._prefill_memory.remember(request.request_id, source)
        self._fleet.book(
            Booking(
                handoff_id=handoff_id,
                request=request,
                decode_incarnation=worker,
                prefill_incarnation=source,
                num_blocks=num_blocks,
                at=now,
            )
        )
        if request.is_suspect:
            self._suspects.add(handoff_id, request, worker, now)
        return self._placement(choice, handoff_id, ticket, now)

    def end(self, handoff_id: str, outcome: Outcome, now: float) -> Booking | None:
        """An attempt ended, or a suspect has settled; returns the booking of an ended one, if there is one."""
        self._suspects.release(handoff_id)
        if outcome is Outcome.SETTLED:
            return None
        return self._fleet.end(
            handoff_id, now, has_finished=outcome is Outcome.FINISHED, has_failed=outcome is Outcome.FAILED
        )

    def _placement(self, choice: EndpointChoice, handoff_id: str, ticket: Ticket, now: float) -> Placement:
        considered = choice.considered
        scores, rejections = named_scores(choice), named_rejections(considered)
        return Placement(
            decode=choice.decode.ref if choice.decode else None,
            prefill=tuple(view.ref for view in choice.prefill),
            handoff_id=handoff_id,
            queued_ms=round((now - ticket.asked_at) * 1000),
            status_version=choice.worker.status.version,
            cache_layout=self._cache_layout(choice.worker),
            scores=scores,
            rejections=rejections,
            num_unnamed=max(0, considered.num_workers - len(scores) - len(rejections)),
            queue_samples=ticket.queue_samples,
        )

    def _cache_layout(self, worker: WorkerView) -> CacheLayout | None:
        return CacheLayout(worker.status.identity, worker.status.block_size) if self._names_blocks else None


class PrefillMemory:
    """Which prefill worker computed a request's prompt last, for its next attempt; the oldest entries go first.

    Args:
        max_requests: most entries.
    """

    def __init__(self, max_requests: int = 8192) -> None:
        self._max_requests = max_requests
        self._by_request: OrderedDict[str, str] = OrderedDict()

    def remember(self, request_id: str, incarnation: str) -> None:
        """The request's prompt is computed there."""
        self._by_request[request_id] = incarnation
        self._by_request.move_to_end(request_id)
        if len(self._by_request) > self._max_requests:
            self._by_request.popitem(last=False)

    def recall(self, request_id: str) -> str:
        """Where its prompt was computed last; empty when that is not known."""
        return self._by_request.get(request_id, "")


def named_scores(choice: EndpointChoice) -> dict[str, float]:
    """Scores of the best workers that could run it, and of the chosen one, which chance may have picked."""
    able, scores = choice.considered.able, choice.considered.scores
    best = sorted(range(len(able)), key=scores.__getitem__, reverse=True)[:MAX_NAMED]
    named = {able[index].ref.worker_id: scores[index] for index in best}
    chosen = choice.worker
    if chosen.ref.worker_id not in named:
        named |= {view.ref.worker_id: score for view, score in zip(able, scores, strict=True) if view is chosen}
    return named


def named_rejections(considered: Considered) -> dict[str, str]:
    """Workers that could not run it, and why."""
    return {view.ref.worker_id: reason.value for view, reason in considered.rejected[:MAX_NAMED]}
