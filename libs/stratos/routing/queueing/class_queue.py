"""The queue of one (model, class): moves first, then tenants in fair order, each tenant first in, first out."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from stratos.routing.queueing.fairness import ServiceCounters
from stratos.routing.queueing.heads import FairHeads, OldestHeads, PromptBounds, has_to_wait
from stratos.routing.queueing.ticket import Dispatched, Place, PlacementVerdict, Reserve, T, Ticket
from stratos.routing.settings import QueueConfig

MAX_SCAN = 32
"""Requests of one flow that are tried when the ones before them fit no live worker."""
MAX_MOVES_SCAN = 256
"""Moves that are tried when the ones before them have to wait."""
MAX_RESERVING = 4
"""Requests of one class that ask for room of their own in one turn."""


class ClassQueue:
    """Waiting requests of one class; ``PlacementQueue`` bounds it."""

    def __init__(self, settings: QueueConfig) -> None:
        self._settings = settings
        self._moves: dict[Ticket, None] = {}
        self._flows: dict[str, dict[Ticket, None]] = {}
        self._flow_tokens: dict[str, int] = {}
        self.service = ServiceCounters()
        self._heads = FairHeads(self.service)
        self._oldest = OldestHeads()
        self._order: list[int] = []
        """Sequence numbers of those that wait, moves left out."""
        self._has_reserved = False
        """Those that wait for room have asked for room of their own in this turn."""
        self.num_requests = 0
        """Moves not counted."""
        self.num_tokens = 0
        """Moves not counted."""

    def __len__(self) -> int:
        return self.num_requests + len(self._moves)

    @property
    def num_moves(self) -> int:
        return len(self._moves)

    def tickets(self) -> Iterator[Ticket]:
        """Every waiting request."""
        yield from self._moves
        for flow in self._flows.values():
            yield from flow

    def oldest(self) -> Ticket | None:
        """The earliest arrival of the first move and the first requests of all tenants."""
        oldest, move = self._oldest.oldest(), next(iter(self._moves), None)
        if oldest is None or move is None:
            return oldest or move
        return min(move, oldest, key=lambda ticket: (ticket.arrived, ticket.sequence))

    def leaders(self, count: int) -> list[Ticket]:
        """The first moves, then those of the tenants' first requests that arrived first; so many of either at most."""
        return [*islice(self._moves, count), *self._oldest.first(count)]

    def add(self, ticket: Ticket) -> None:
        """Append a request to its flow."""
        ticket.is_waiting = True
        if ticket.request.is_move:
            self._moves[ticket] = None
            return
        tenant = ticket.request.terms.tenant
        self.service.weigh(tenant, ticket.request.terms.share.weight)
        flow = self._flows.get(tenant)
        if flow is None:
            self.service.arrive(tenant)
            self._flows[tenant] = {ticket: None}
            self._lead(ticket)
        else:
            flow[ticket] = None
        self._count(ticket, +1)

    def remove(self, ticket: Ticket) -> None:
        """Remove a waiting request, for any reason."""
        ticket.is_waiting = False
        if ticket.request.is_move:
            del self._moves[ticket]
            return
        tenant = ticket.request.terms.tenant
        flow = self._flows[tenant]
        is_first = next(iter(flow)) is ticket
        del flow[ticket]
        self._heads.take_out(ticket)
        self._count(ticket, -1)
        if not flow:
            del self._flows[tenant]
            del self._flow_tokens[tenant]
        elif is_first:
            self._lead(next(iter(flow)))

    def charge(self, ticket: Ticket) -> None:
        """A request of its tenant is dispatched; a move costs what no attempt before it has paid for."""
        if not ticket.request.is_move:
            self.service.charge(ticket.request.terms.tenant, ticket.cost)
        else:  # it takes no turn of its tenant's, so the level of the others stays
            self.service.settle(ticket.request.terms.tenant, ticket.cost)

    def standing(self, ticket: Ticket) -> tuple[float, float]:
        """The service of its tenant before and after it is dispatched; a move begins at 0, since the level stays."""
        before, after = self.service.standing(ticket.request.terms.tenant, ticket.cost)
        return (0.0 if ticket.request.is_move else before), after

    def settle(self, tenant: str, difference: float) -> None:
        """The real cost of a tenant's requests became known; what it differs from the charges."""
        self.service.settle(tenant, difference)
        if difference < 0 and (flow := self._flows.get(tenant)):
            first = next(iter(flow))
            if not math.isnan(first.counter):
                self._heads.put_back(first)

    def victims_for(self, ticket: Ticket) -> list[Ticket] | None:
        """Newest requests of the heaviest tenant that must leave so that the newcomer fits; ``None`` when it must not.

        A tenant that floods the queue loses its own newest requests; it does not lock the others out.
        """
        settings, tenant, new_tokens = self._settings, ticket.request.terms.tenant, ticket.request.num_prompt_tokens
        num_requests, num_tokens = self.num_requests, self.num_tokens
        if self._fits(num_requests, num_tokens, new_tokens):
            return []
        victims: list[Ticket] = []
        by_count = num_requests >= settings.max_requests
        held = {name: len(flow) for name, flow in self._flows.items()} if by_count else dict(self._flow_tokens)
        heaviest = max(held, key=lambda name: held[name], default=tenant)
        for victim in reversed(self._flows.get(heaviest, {})):
            if self._fits(num_requests, num_tokens, new_tokens):
                break
            # The newcomer's tenant after it joined: evicting from a tenant that would then be the lighter one
            # would only turn the roles around.
            own = held.get(tenant, 0) + (1 if by_count else new_tokens)
            if heaviest == tenant or held[heaviest] <= own:
                return None
            victims.append(victim)
            num_requests, num_tokens = num_requests - 1, num_tokens - victim.request.num_prompt_tokens
            held[heaviest] -= 1 if by_count else victim.request.num_prompt_tokens
        return victims if self._fits(num_requests, num_tokens, new_tokens) else None

    def _fits(self, num_requests: int, num_tokens: int, new_tokens: int) -> bool:
        """The bounds hold with the newcomer; an empty queue takes a request of any length."""
        fits_tokens = num_requests == 0 or num_tokens + new_tokens <= self._settings.max_tokens
        return num_requests < self._settings.max_requests and fits_tokens

    def begin_turn(self) -> None:
        """The fleet may have changed since requests were tried the last time."""
        self._heads.sweep(len(self._flows))
        self._oldest.sweep(len(self._flows))
        self._heads.begin_turn(len(self._flows))
        self._has_reserved = False

    def dispatch(
        self, now: float, place: Place[T], reserve: Reserve, bounds: PromptBounds
    ) -> Dispatched[T] | PlacementVerdict | None:
        """Place one request.

        A blocked request lets others pass; once it is entitled to, it reserves room at one worker.

        Returns:
            The placed one; ``PlacementVerdict.FULL`` when nothing of this model can be placed; ``None`` when
            nothing of this class can be placed in this turn and lower classes may try.
        """
        # Moves are not charged and not ordered: their clients have begun to read.
        found = self._try(self._moves, MAX_MOVES_SCAN, now, place, reserve, bounds)
        if found is not None:
            return found
        while (first := self._heads.take(bounds)) is not None:
            tenant = first.request.terms.tenant
            found = self._try(self._flows[tenant], MAX_SCAN, now, place, reserve, bounds)
            if found is None:
                self._heads.put_aside(first)
                continue
            if first.is_waiting:
                self._heads.put_back(first)
            return found
        self._reserve_for_blocked(now, reserve, bounds)
        return None

    def _try(
        self,
        flow: dict[Ticket, None],
        most: int,
        now: float,
        place: Place[T],
        reserve: Reserve,
        bounds: PromptBounds,
    ) -> Dispatched[T] | PlacementVerdict | None:
        for ticket in islice(flow, most):
            is_move = ticket.request.is_move
            result = PlacementVerdict.BLOCKED if is_move and is_too_long(ticket, bounds) else place(ticket)
            if not isinstance(result, PlacementVerdict):
                self.remove(ticket)
                self.charge(ticket)
                return Dispatched(ticket, result)
            if result is PlacementVerdict.FULL:
                return result
            if result is PlacementVerdict.BLOCKED:
                # A young blocked request lets others pass; an old one keeps the room that gets free at one worker
                # for itself, so that a large request is not passed for ever by small ones.
                if is_move or now - ticket.arrived >= self._settings.hold_after_s:
                    reserve(ticket)
                if not is_move:
                    break  # first in, first out within a tenant
        return None

    def _reserve_for_blocked(self, now: float, reserve: Reserve, bounds: PromptBounds) -> None:
        """Old requests that were not tried, since no worker has room for them, in their order."""
        oldest, until = self._oldest.oldest(), now - self._settings.hold_after_s
        if self._has_reserved or oldest is None or oldest.arrived > until or not bounds.may_reserve(oldest):
            return
        self._has_reserved = True
        asked: list[Ticket] = []
        with closing(self._heads.blocked_in_order(until, MAX_SCAN)) as blocked:
            for ticket in islice(blocked, MAX_RESERVING):
                if not bounds.may_reserve(ticket):
                    break
                reserve(ticket)
                asked.append(ticket)
        for ticket in asked:
            self._heads.add(ticket)  # the holder of room is tried in every turn

    def _lead(self, ticket: Ticket) -> None:
        """It is the first of its tenant from now on."""
        self._heads.add(ticket)
        self._oldest.put(ticket)

    def num_before(self, ticket: Ticket) -> int:
        """Requests of this class that came before a new one, and its moves."""
        return len(self._moves) + bisect_left(self._order, ticket.sequence)

    def _count(self, ticket: Ticket, sign: int) -> None:
        if sign > 0:
            insort(self._order, ticket.sequence)
        else:
            del self._order[bisect_left(self._order, ticket.sequence)]
        tenant, tokens = ticket.request.terms.tenant, ticket.request.num_prompt_tokens
        self.num_requests += sign
        self.num_tokens += sign * tokens
        self._flow_tokens[tenant] = self._flow_tokens.get(tenant, 0) + sign * tokens


def is_too_long(ticket: Ticket, bounds: PromptBounds) -> bool:
    """No worker has room for its prompt now."""
    kind = bounds.kind(ticket)
    return kind is not None and has_to_wait(ticket, bounds.blocked(kind))
