"""Waiting requests meet workers: admission, workers that are kept for others, the choice, reservations.

Synchronous and without a clock; who calls it books what is chosen and wakes the caller.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from random import Random

from stratos.core.placement import Work
from stratos.routing.admission import Ask
from stratos.routing.dispatch.full_models import FullModels
from stratos.routing.dispatch.isolation import SuspectHolds, still_excluded
from stratos.routing.dispatch.room_table import RoomTable
from stratos.routing.filters import Rejection, is_candidate, may_vanish
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import MAX_NAMED, EndpointChoice, Refusal, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.worker_view import WorkerView

MAX_RESERVABLE = 16
"""Workers of which one is kept for a request: those that lack the least."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Fleet:
    """The fleet that a request is tried against."""

    views: FleetViews
    version: int
    preferred_prefill: str


class Placer:
    """Tries requests against the fleet.

    Args:
        reservations: of this router.
        suspects: where suspects are; workers that hold one take no other.
        policies: of the pools.
        rng: breaks ties.
    """

    def __init__(self, reservations: Reservations, suspects: SuspectHolds, policies: Policies, rng: Random) -> None:
        self._reservations = reservations
        self._suspects = suspects
        self._policies = policies
        self._rng = rng
        self._full = FullModels()
        self._rooms = RoomTable()
        self._rejections: Counter[Rejection] = Counter()

    def take_rejections(self) -> Counter[Rejection]:
        """Workers that refused tries did not go to, by reason, since the last call."""
        taken, self._rejections = self._rejections + self._rooms.rejections, Counter()
        self._rooms.rejections.clear()
        return taken

    def choose(
        self, ticket: Ticket, ask: Ask, views: FleetViews, version: int, *, preferred_prefill: str = ""
    ) -> EndpointChoice | PlacementVerdict:
        """Where a request may run now; nothing is booked.

        Args:
            ticket: of the request.
            ask: what it may take now.
            views: every known worker.
            version: of ``views``; moves whenever a choice among them could turn out differently.
            preferred_prefill: incarnation that has computed its prompt before.
        """
        ask = _excluding(ask, still_excluded(ask.request, views, ticket.asked_at))
        closed = self._reservations.closed_to(ticket)
        ask = ask.closing(closed | ask.clear if closed and ask.clear else closed or ask.clear)
        fleet = _Fleet(views, version, preferred_prefill)
        holders = self._suspects.workers()
        if not holders and not ask.request.is_suspect:
            return self._try(ask, fleet)
        if self._suspects.has_prompt_of(ask.request):
            return PlacementVerdict.INELIGIBLE
        apart = ask.closing(ask.closed | holders)
        choice = self._try(apart, fleet)
        if not isinstance(choice, EndpointChoice):
            beside = self._try(ask, fleet)
            # A suspect waits for a worker without another one, and stops no others; those go beside one if they must.
            return (
                PlacementVerdict.INELIGIBLE if ask.request.is_suspect and isinstance(beside, EndpointChoice) else beside
            )
        return choice.without_sources() if ask.request.is_suspect else choice

    def _try(self, ask: Ask, fleet: _Fleet) -> EndpointChoice | PlacementVerdict:
        if (verdict := self._full.verdict(ask, fleet.version)) is not None:
            return verdict
        able = self._able(ask, fleet)
        candidates = self._candidates(ask, fleet) if able is None else able
        if candidates is not None and not candidates:
            return PlacementVerdict.BLOCKED
        choice = self._choose(ask, fleet, candidates, is_able=able is not None)
        if isinstance(choice, EndpointChoice):
            return choice
        self._rejections.update(choice.rejections)
        self._full.learn(ask, choice, fleet.version)
        if choice.is_blocked:
            return self._full.verdict(ask, fleet.version) or PlacementVerdict.BLOCKED
        return PlacementVerdict.INELIGIBLE

    def _able(self, ask: Ask, fleet: _Fleet) -> list[WorkerView] | None:
        """Workers that pass every filter, where that is known."""
        if ask.request.work is Work.EMBEDDING:
            return None
        return self.rooms(fleet.views, fleet.version).able(ask)

    def _candidates(self, ask: Ask, fleet: _Fleet) -> list[WorkerView] | None:
        """Workers with room for its blocks; ``None`` where all have to be looked at."""
        if ask.request.work is Work.EMBEDDING:
            return None
        return self.rooms(fleet.views, fleet.version).candidates(ask)

    def _choose(
        self, ask: Ask, fleet: _Fleet, candidates: list[WorkerView] | None, *, is_able: bool
    ) -> EndpointChoice | Refusal:
        """A worker that the request avoids is better than none: it may be the only one that serves the model."""
        views, prefill = fleet.views, fleet.preferred_prefill
        if candidates is not None:
            choice = choose(
                views, ask, self._policies, self._rng, preferred_prefill=prefill, pool=candidates, is_able=is_able
            )
            if isinstance(choice, EndpointChoice):
                if len(candidates) == len(views.pool_of(ask.request)):
                    return choice
                return choice.with_rejected(self._rooms.left_out(ask, candidates, MAX_NAMED))
        choice = choose(views, ask, self._policies, self._rng, preferred_prefill=prefill)
        if isinstance(choice, Refusal) and choice.rejections[Rejection.EXCLUDED] and not choice.is_blocked:
            ask = _excluding(ask, frozenset())
            return choose(views, ask, self._policies, self._rng, preferred_prefill=prefill)
        return choice

    def rooms(self, views: FleetViews, version: int) -> RoomTable:
        """The room of the fleet as it is now."""
        self._rooms.look(views, version)
        return self._rooms

    def reserve(self, ticket: Ticket, ask: Ask, views: FleetViews) -> None:
        """Keep room for a blocked request at the worker where it is expected to fit first."""
        held = views.get(self._reservations.held_by(ticket))
        if held is not None:
            if held.ref.incarnation not in ask.clear and is_candidate(held, ask):
                return
        elif not self._reservations.may_hold(ticket, views):
            return  # before workers are looked at one by one
        pool = [
            view
            for view in views.pool_of(ask.request)
            if may_vanish(view, ask) is None and view.ref.incarnation not in ask.clear
        ]
        if len(pool) > MAX_RESERVABLE:
            has_table = ask.num_slots == 1 and ask.request.work is not Work.EMBEDDING
            roomiest = self._rooms.roomiest(ask, MAX_RESERVABLE) if has_table else []
            pool = roomiest or heapq.nsmallest(MAX_RESERVABLE, pool, key=ask.num_short)
        self._reservations.reserve(ticket, ask, [view for view in pool if is_candidate(view, ask)])


def _excluding(ask: Ask, incarnations: frozenset[str]) -> Ask:
    if ask.request.excluded_incarnations == incarnations:
        return ask
    return dataclasses.replace(ask, request=dataclasses.replace(ask.request, excluded_incarnations=incarnations))
