"""Bounds of the queue: prompts that no worker of the fleet has room for are not tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import cast

from stratos.core.placement import Work
from stratos.routing.admission import Ask
from stratos.routing.dispatch.placer import Placer
from stratos.routing.dispatch.room_table import NeedKind
from stratos.routing.fleet_state import FleetState
from stratos.routing.queueing.reservations import Rank, Reservations, rank_of
from stratos.routing.queueing.ticket import Ticket


class FleetBounds:
    """``stratos.routing.queueing.heads.PromptBounds`` over the fleet, in one turn.

    Args:
        fleet: workers.
        reservations: workers that are kept for some requests are closed to others.
        placer: has the table of the pools' room.
        ask: the needs of a ticket.
    """

    def __init__(
        self, fleet: FleetState, reservations: Reservations, placer: Placer, ask: Callable[[Ticket], Ask]
    ) -> None:
        self._fleet = fleet
        self._reservations = reservations
        self._placer = placer
        self._ask = ask
        self._now = 0.0

    def begin(self, now: float) -> None:
        """A turn begins."""
        self._now = now

    @property
    def epoch(self) -> int:
        return self._reservations.epoch

    def kind(self, ticket: Ticket) -> tuple[NeedKind, Rank] | None:
        """Its needs and its rank; ``None`` for inputs to embed and for the holder of room."""
        if ticket.request.work is Work.EMBEDDING or self._reservations.held_by(ticket):
            return None
        kind = self._placer.kind_of(self._ask(ticket), self._fleet.views(self._now), self._fleet.version)
        return kind, rank_of(ticket)

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        need, rank = cast("tuple[NeedKind, Rank]", kind)
        closed = self._reservations.closed_to_rank(rank)
        return self._placer.blocked(need, closed, self._fleet.views(self._now), self._fleet.version)

    def may_reserve(self, ticket: Ticket) -> bool:
        return self._reservations.may_hold(ticket, self._fleet.views(self._now))
