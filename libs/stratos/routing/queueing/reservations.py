"""Room that is kept for a request that does not fit yet, at one worker.

Batch slots and blocks that get free at a reserved worker stay free until the request fits; everything else passes at
the other workers.  The worker is the one where the request is expected to fit first: where the placements that have to
end for it were made longest ago.

A reservation closes its worker to requests of its class or below.  Of each class at most one move and one new request
hold a reservation, and reservations take at most half of the workers that could run the request (at least one), the
most urgent first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stratos.routing.admission import Ask
from stratos.routing.bookings import BookingLedger
from stratos.routing.fleet_views import FleetViews
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.worker_view import WorkerView

NONE_CLOSED: frozenset[str] = frozenset()
Rank = tuple[int, bool]
"""Class, and whether it is new: moves go before the new requests of their class."""


@dataclass(frozen=True, slots=True)
class WorkerReservation:
    """One worker, kept for one request."""

    ticket: Ticket
    incarnation: str

    @property
    def rank(self) -> Rank:
        return rank_of(self.ticket)


def rank_of(ticket: Ticket) -> Rank:
    """The smaller, the more urgent."""
    return ticket.request.terms.priority_class, not ticket.request.is_move


class Reservations:
    """All reservations of one router."""

    def __init__(self, bookings: BookingLedger) -> None:
        self._bookings = bookings
        self._by_worker: dict[str, WorkerReservation] = {}
        self._epoch = 0
        self._num_made = 0

    @property
    def version(self) -> int:
        """Moves when a worker is kept, or is kept no longer."""
        self._live()
        return self._epoch + self._num_made

    @property
    def epoch(self) -> int:
        """Moves when a worker is kept no longer."""
        self._live()
        return self._epoch

    def __len__(self) -> int:
        return len(self._live())

    def closed_to(self, ticket: Ticket) -> frozenset[str]:
        """Incarnations that are kept for others."""
        closed, own = self.closed_to_rank(rank_of(ticket)), self.held_by(ticket)
        return closed - {own} if own else closed

    def closed_to_rank(self, rank: Rank) -> frozenset[str]:
        """Incarnations that are closed to requests of a rank which hold none."""
        if not self._by_worker:
            return NONE_CLOSED
        return frozenset(incarnation for incarnation, held in self._live().items() if held.rank <= rank)

    def held_by(self, ticket: Ticket) -> str:
        """The incarnation that is kept for a request; empty when there is none."""
        for name, held in self._live().items():
            if held.ticket is ticket:
                return name
        return ""

    def may_hold(self, ticket: Ticket, views: FleetViews) -> bool:
        """A place may be free for the request in its pool, as far as can be told without looking at each worker."""
        pool, rank = views.pool_of(ticket.request), rank_of(ticket)
        others = [held for name, held in self._live().items() if views.could_run(name, ticket.request)]
        if any(held.rank == rank for held in others):
            return False
        return len(others) < max(1, len(pool) // 2) or any(held.rank > rank for held in others)

    def reserve(self, ticket: Ticket, ask: Ask, candidates: Sequence[WorkerView]) -> None:
        """Keep one of ``candidates``, which could run the request once they have room, if a place may be taken.

        A request keeps the worker that it has as long as that is a candidate.
        """
        names = {view.ref.incarnation for view in candidates}
        live = self._live()
        mine = live.get(self.held_by(ticket))
        if mine is not None:
            if mine.incarnation in names:
                return
            self._give_up(mine)
        if not candidates or not self._may_reserve(ticket, names):
            return
        free = [view for view in candidates if view.ref.incarnation not in live]
        if free:
            best = min(free, key=lambda view: (self._fits_after(view, ask), view.num_seqs))
            self._num_made += 1
            live[best.ref.incarnation] = WorkerReservation(ticket, best.ref.incarnation)

    def _live(self) -> dict[str, WorkerReservation]:
        """Reservations of requests that still wait."""
        for held in [held for held in self._by_worker.values() if not held.ticket.is_waiting]:
            self._give_up(held)
        return self._by_worker

    def _give_up(self, held: WorkerReservation) -> None:
        del self._by_worker[held.incarnation]
        self._epoch += 1

    def _may_reserve(self, ticket: Ticket, names: Collection[str]) -> bool:
        """A place is free, or one of a less urgent request is given up."""
        rank = rank_of(ticket)
        others = sorted((held for held in self._by_worker.values() if held.incarnation in names), key=_urgency)
        if any(held.rank == rank for held in others):
            return False
        if len(others) < max(1, len(names) // 2):
            return True
        if others[-1].rank > rank:
            self._give_up(others[-1])
            return True
        return False

    def _fits_after(self, view: WorkerView, ask: Ask) -> float:
        """When the last placement was made that has to end before the request fits; bookings end oldest first."""
        num_seqs, num_blocks = ask.num_slots_short(view), ask.num_blocks_short(view)
        # What the worker shows beyond this router's bookings was placed by another router, or before a restart.
        num_seqs -= max(0, view.num_seqs - view.held.num_seqs)
        num_blocks -= max(0, view.num_used_blocks - view.held.num_blocks)
        placed_at = float("-inf")
        for booking in self._bookings.oldest_first(view.ref.incarnation):
            if num_seqs <= 0 and num_blocks <= 0:
                break
            num_seqs -= booking.num_seqs
            num_blocks -= booking.num_blocks
            placed_at = booking.at
        return placed_at


def _urgency(held: WorkerReservation) -> Rank:
    return held.rank
