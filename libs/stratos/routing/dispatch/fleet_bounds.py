"""Bounds of the queue: prompts that no worker of the fleet has room for are not tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import cast

from stratos.core.placement import Work, WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.dispatch.clear_workers import NONE_CLEAR, ClearWorkers, leaves_some
from stratos.routing.dispatch.placer import Placer
from stratos.routing.dispatch.room_table import NeedKind, RoomTable
from stratos.routing.fleet_state import FleetState
from stratos.routing.queueing.reservations import Rank, Reservations, rank_of
from stratos.routing.queueing.ticket import Ticket

MAX_KINDS = 1024
"""They come from requests, so their number is bounded; one that was forgotten and comes back is another one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Needs beside the length of a prompt, and rank; compared by identity, for it is looked up hundreds of times."""

    need: NeedKind
    rank: Rank
    leaves_clear: bool
    """Workers that are kept clear of its class are closed to it, where another one is large enough."""


class FleetBounds:
    """``stratos.routing.queueing.heads.PromptBounds`` over the fleet, in one turn.

    Args:
        fleet: workers.
        reservations: workers that are kept for some requests are closed to others.
        placer: has the table of the pools' room.
        ask: the needs of a ticket.
        clear: workers that are kept clear of the lowest class.
    """

    def __init__(
        self,
        fleet: FleetState,
        reservations: Reservations,
        placer: Placer,
        ask: Callable[[Ticket], Ask],
        clear: ClearWorkers,
    ) -> None:
        self._fleet = fleet
        self._reservations = reservations
        self._placer = placer
        self._ask = ask
        self._clear = clear
        self._now = 0.0
        self._version: float = math.nan
        self._kept_version = 0
        self._rooms = RoomTable()
        self._kinds: dict[tuple[NeedKind, Rank, bool], _Kind] = {}
        self._closed: dict[Rank, frozenset[str]] = {}
        self._clear_sets: dict[str, frozenset[str]] = {}
        """By model, in this turn."""
        self._found: dict[Hashable, tuple[float, float]] = {}
        """By kind, for one version of the fleet and of what is kept in it."""

    def begin(self, now: float) -> None:
        """A turn begins."""
        self._now = now
        if self._clear_sets:
            self._clear_sets.clear()
            self._version = math.nan

    @property
    def epoch(self) -> int:
        return self._reservations.epoch

    def kind(self, ticket: Ticket) -> Hashable | None:
        """Its needs and its rank; ``None`` for inputs to embed and for the holder of room."""
        if ticket.request.work is Work.EMBEDDING or self._reservations.held_by(ticket):
            return None
        ask, request = self._ask(ticket), ticket.request
        need = self._placer.rooms(self._fleet.views(self._now), self._fleet.version).kind_of(ask)
        leaves_clear = leaves_some(request) and not request.excluded_incarnations
        key = need, rank_of(ticket), leaves_clear
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(*key)
        return kind

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        if self._fleet.version != self._version or self._reservations.version != self._kept_version:
            self._version, self._kept_version = self._fleet.version, self._reservations.version
            self._rooms = self._placer.rooms(self._fleet.views(self._now), self._version)
            self._closed.clear()
            self._found.clear()
        found = self._found.get(kind)
        if found is None:
            found = self._found[kind] = self._find_blocked(cast("_Kind", kind))
        return found

    def _find_blocked(self, kind: _Kind) -> tuple[float, float]:
        closed = self._closed.get(kind.rank)
        if closed is None:
            closed = self._closed[kind.rank] = self._reservations.closed_to_rank(kind.rank)
        clear = self._clear_of(kind.need.model_digest) if kind.leaves_clear else NONE_CLEAR
        return self._rooms.blocked(kind.need, closed, clear)

    def _clear_of(self, model_digest: str) -> frozenset[str]:
        clear = self._clear_sets.get(model_digest)
        if clear is None:
            clear = self._clear.of(WorkerRole.DECODE, model_digest, self._fleet.views(self._now), self._now)
            self._clear_sets[model_digest] = clear
        return clear

    def may_reserve(self, ticket: Ticket) -> bool:
        return self._reservations.may_hold(ticket, self._fleet.views(self._now))
