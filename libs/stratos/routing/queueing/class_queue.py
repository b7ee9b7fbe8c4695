"""The queue of one (model, class): moves first, then tenants in fair order, each tenant first in, first out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from stratos.core.placement import PlacementRequest
from stratos.routing.admission import Ask
from stratos.routing.queueing.fairness import ServiceCounters
from stratos.routing.settings import QueueConfig

T = TypeVar("T")
MAX_SCAN = 32
"""Requests of one flow that are tried when the ones before them fit no live worker."""
MAX_MOVES_SCAN = 256
"""Moves that are tried when the ones before them have to wait."""


class PlacementVerdict(enum.Enum):
    """Why a request was not placed."""

    BLOCKED = "blocked"
    """A worker would take it once it has room."""
    FULL = "full"
    """Blocked, and no other request of its model can be placed either."""
    INELIGIBLE = "ineligible"
    """No live worker could take it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A waiting request. Compared by identity."""

    request: PlacementRequest
    cost: float
    """Charge on the tenant's service counter at dispatch; output is charged as it is made."""
    arrived: float
    """When its wait began, earlier calls included."""
    expires: float
    sequence: int = field(default=0)
    is_waiting: bool = field(default=False)
    ask: Ask | None = field(default=None, repr=False)
    """Its needs as worked out before, since it is tried many times."""

    @property
    def asked_at(self) -> float:
        """When its present call arrived."""
        return self.arrived + self.request.waited_ms / 1000


@dataclass(frozen=True, slots=True)
class Dispatched(Generic[T]):
    """A request left the queue with a result."""

    ticket: Ticket
    result: T


Place = Callable[[Ticket], T | PlacementVerdict]
"""Try to place a request now; a result means that it is placed."""
Reserve = Callable[[Ticket], None]
"""Keep room for a blocked request at one worker, which is closed to others until it is placed; a place may be taken."""


def never_reserve(ticket: Ticket) -> None:
    """Lets every request pass a blocked one for ever."""


class ClassQueue:
    """Waiting requests of one class; ``PlacementQueue`` bounds it."""

    def __init__(self, settings: QueueConfig) -> None:
        self._settings = settings
        self._moves: dict[Ticket, None] = {}
        self._flows: dict[str, dict[Ticket, None]] = {}
        self._flow_tokens: dict[str, int] = {}
        self.service = ServiceCounters()
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

    def heads(self) -> Iterator[Ticket]:
        """The first request of each flow."""
        for flow in (self._moves, *self._flows.values()):
            yield from islice(flow, 1)

    def leaders(self) -> Iterator[Ticket]:
        """Candidates to go first: the first move if there is one, else the first request of each tenant."""
        yield from islice(self._moves, 1) if self._moves else self.heads()

    def add(self, ticket: Ticket) -> None:
        """Append a request to its flow."""
        ticket.is_waiting = True
        if ticket.request.is_move:
            self._moves[ticket] = None
            return
        tenant = ticket.request.terms.tenant
        self.service.weigh(tenant, ticket.request.terms.share.weight)
        if tenant not in self._flows:
            self.service.arrive(tenant)
        self._flows.setdefault(tenant, {})[ticket] = None
        self._count(ticket, +1)

    def remove(self, ticket: Ticket) -> None:
        """Remove a waiting request, for any reason."""
        ticket.is_waiting = False
        if ticket.request.is_move:
            del self._moves[ticket]
            return
        flow = self._flows[ticket.request.terms.tenant]
        del flow[ticket]
        self._count(ticket, -1)
        if not flow:
            del self._flows[ticket.request.terms.tenant]
            del self._flow_tokens[ticket.request.terms.tenant]

    def charge(self, ticket: Ticket) -> None:
        """A request of its tenant is dispatched; a move costs what no attempt before it has paid for."""
        if not ticket.request.is_move:
            self.service.charge(ticket.request.terms.tenant, ticket.cost)
        else:  # it takes no turn of its tenant's, so the level of the others stays
            self.service.settle(ticket.request.terms.tenant, ticket.cost)

    def victims_for(self, ticket: Ticket) -> list[Ticket] | None:
        """Newest requests of the heaviest tenant that must leave so that the newcomer fits; ``None`` when it must not.

        A tenant that floods the queue loses its own newest requests; it does not lock the others out.
        """
        settings, tenant, new_tokens = self._settings, ticket.request.terms.tenant, ticket.request.num_prompt_tokens
        num_requests, num_tokens = self.num_requests, self.num_tokens
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

    def dispatch(self, now: float, place: Place[T], reserve: Reserve) -> Dispatched[T] | PlacementVerdict | None:
        """Place one request.

        A blocked request lets others pass; once it is entitled to, it reserves room at one worker.

        Returns:
            The placed one; ``PlacementVerdict.FULL`` when nothing of this model can be placed; ``None`` when
            nothing of this class can be placed and lower classes may try.
        """
        for flow in self._flows_in_order():
            is_moves = flow is self._moves
            for ticket in islice(flow, MAX_MOVES_SCAN if is_moves else MAX_SCAN):
                result = place(ticket)
                if not isinstance(result, PlacementVerdict):
                    self.remove(ticket)
                    self.charge(ticket)
                    return Dispatched(ticket, result)
                if result is PlacementVerdict.FULL:
                    return result
                if result is PlacementVerdict.BLOCKED:
                    # A young blocked request lets others pass; an old one keeps the room that gets free at one worker
                    # for itself, so that a large request is not passed for ever by small ones.
                    if is_moves or now - ticket.arrived >= self._settings.hold_after_s:
                        reserve(ticket)
                    if not is_moves:
                        break  # first in, first out within a tenant
        return None

    def _flows_in_order(self) -> Iterator[dict[Ticket, None]]:
        # Moves are not charged and not ordered: their clients have begun to read.  Then the tenant with the
        # smallest counter; equal counters, such as those of new tenants, go by the age of the first request.
        yield self._moves
        for tenant in sorted(self._flows, key=lambda t: (self.service[t], next(iter(self._flows[t])).sequence)):
            yield self._flows[tenant]

    def _count(self, ticket: Ticket, sign: int) -> None:
        tenant, tokens = ticket.request.terms.tenant, ticket.request.num_prompt_tokens
        self.num_requests += sign
        self.num_tokens += sign * tokens
        self._flow_tokens[tenant] = self._flow_tokens.get(tenant, 0) + sign * tokens
