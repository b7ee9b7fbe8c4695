"""The first requests of all tenants of a class, without sorting them all or trying what cannot fit.

    bounded   a heap by service counter, and for each kind a list by the length of the prompt, so that those that may
              find room are counted by bisection, compared when they are few, and none is looked at when there are none
    free      have to be tried, since no bound says anything of them, or none was refused yet; a heap by counter
    skipped   before those that were placed in this turn, and too long for the room that there is
    tried     in this turn in vain

Counters grow while an entry lies in a heap, which is noticed when it is on top.  Entries of requests that left are
dropped when they are met, or when they outnumber the others.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Hashable
from typing import Protocol

from stratos.routing.queueing.fairness import ServiceCounters
from stratos.routing.queueing.ticket import Ticket

MAX_STALE = 256
"""Entries of requests that left, above as many as there are others, before they are swept out."""
MAX_GATHERED = 512
"""So many that may find room are made a heap; of more, the one with the smallest counter comes soon.

Of n requests k may find room: a heap takes k looks, passing others by their counters n / k.
"""
MAX_VAIN = 16
"""Candidates that a placement has left without room, before those that still have some are counted again."""


class PromptBounds(Protocol):
    """Prompts that no worker has room for now, by what else their requests need."""

    def kind(self, ticket: Ticket) -> Hashable | None:
        """Requests of one kind differ in the length of their prompts alone; ``None``: it has to be tried."""
        ...

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        """Prompts longer than the first number and no longer than the second have to wait for room."""
        ...

    def may_reserve(self, ticket: Ticket) -> bool:
        """A request of its class may get room of its own."""
        ...

    @property
    def epoch(self) -> int:
        """Moves when room that was kept for one request is given to others."""
        ...


class NoBounds:
    """Every request has to be tried."""

    epoch = 0

    def kind(self, ticket: Ticket) -> None:
        return None

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        return math.inf, math.inf

    def may_reserve(self, ticket: Ticket) -> bool:
        return True


NO_BOUNDS = NoBounds()


Entry = tuple[float, int, Ticket]
"""Counter or length, then the order of arrival."""


class _Lengths:
    """Requests of one kind that wait, the shortest prompt first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, ticket: Ticket) -> None:
        insort(self.entries, (ticket.request.num_prompt_tokens, ticket.sequence, ticket))

    def remove(self, ticket: Ticket) -> None:
        del self.entries[bisect_left(self.entries, (ticket.request.num_prompt_tokens, ticket.sequence))]

    def fitting(self, blocked: tuple[float, float]) -> list[Entry]:
        """Requests that may find room, and those that could run nowhere, which a try finds out."""
        entries, (more_than, at_most) = self.entries, blocked
        end = bisect_right(entries, (more_than, math.inf))
        longer = bisect_right(entries, (at_most, math.inf), lo=end) if at_most > more_than else end
        return entries[:end] + entries[longer:] if longer < len(entries) else entries[:end]


class FairHeads:
    """Belongs to one class of one model.

    Args:
        service: counters of the tenants.
    """

    def __init__(self, service: ServiceCounters) -> None:
        self._service = service
        self._new: list[Ticket] = []
        self._bounded: list[Entry] = []
        self._free: list[Entry] = []
        self._lengths: dict[Hashable, _Lengths] = {}
        """Those of ``bounded`` that wait."""
        self._candidates: list[Entry] | None = None
        """Heap of those of ``bounded`` that may find room in this turn; ``None`` where that is not known."""
        self._skipped: list[Ticket] = []
        self._tried: list[Ticket] = []
        self._epoch = 0
        self._is_tight = False
        """A request was refused, and some wait: while all are placed at once, bounds would only cost."""

    def add(self, ticket: Ticket) -> None:
        """It is the first of its tenant, or what it may have has changed."""
        self.take_out(ticket)
        self._new.append(ticket)

    def take_out(self, ticket: Ticket) -> None:
        """It is being tried, or has left."""
        if ticket.kind is not None and not math.isnan(ticket.counter):
            lengths = self._lengths[ticket.kind]
            lengths.remove(ticket)
            if not lengths.entries:
                del self._lengths[ticket.kind]
        ticket.counter = math.nan

    def put_back(self, ticket: Ticket) -> None:
        """It was taken, or its tenant's counter has changed."""
        is_bounded = ticket.kind is not None
        if is_bounded and math.isnan(ticket.counter):
            self._lengths.setdefault(ticket.kind, _Lengths()).add(ticket)
        ticket.counter = self._service[ticket.request.terms.tenant]
        entry = ticket.counter, ticket.sequence, ticket
        heapq.heappush(self._bounded if is_bounded else self._free, entry)
        if self._candidates is not None and is_bounded:
            heapq.heappush(self._candidates, entry)

    def put_aside(self, ticket: Ticket) -> None:
        """It was tried in vain; it is tried again in the next turn."""
        self._tried.append(ticket)
        if not self._is_tight:
            self._is_tight = True
            for entry in self._free:
                if _is_valid(entry, is_free=True):
                    self.add(entry[2])
            self._free.clear()

    def begin_turn(self, num_heads: int) -> None:
        """Room may have become free."""
        if self._is_tight and len(self._new) >= num_heads:
            self._is_tight = num_heads != len({ticket for ticket in self._new if ticket.is_waiting})
        tried, self._tried = self._tried, []
        for ticket in tried:
            if ticket.is_waiting:
                self.add(ticket)
        self._unskip()

    def take(self, bounds: PromptBounds) -> Ticket | None:
        """The request to try next; the caller puts it back or aside."""
        if not self._is_tight:
            self._sort_in(NO_BOUNDS)
            return self._take_first(self._free)
        self._sort_in(bounds)
        if bounds.epoch != self._epoch:
            self._epoch = bounds.epoch
            self._unskip()
        fitting, free = self._next_fitting(bounds), self._take_first(self._free)
        if fitting is None or free is None:
            return fitting or free
        first, second = sorted((fitting, free), key=self._standing)
        self.put_back(second)
        return first

    def blocked_in_order(self, until: float, most: int) -> Generator[Ticket, None, None]:
        """Requests that wait for room, in their order, when ``take`` has returned ``None``; the caller closes it.

        Args:
            until: younger ones are left out.
            most: are looked at.
        """
        self._unskip()
        looked: list[Ticket] = []
        try:
            while len(looked) < most and (ticket := self._take_first(self._bounded)) is not None:
                looked.append(ticket)
                if ticket.arrived <= until:
                    yield ticket
        finally:
            for ticket in looked:
                self.put_back(ticket)

    def sweep(self, num_heads: int) -> None:
        """Drop entries of requests that left, where they outnumber the others."""
        most = 2 * num_heads + MAX_STALE
        for heap in (self._bounded, self._free):
            if len(heap) > most:
                valid = (entry for entry in heap if _is_valid(entry, is_free=heap is self._free))
                heap[:] = {entry[2]: entry for entry in valid}.values()  # one that came back has two
                heapq.heapify(heap)

    def _sort_in(self, bounds: PromptBounds) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        for ticket in new:
            if ticket.is_waiting:
                self.take_out(ticket)  # it may have come twice
                ticket.kind = bounds.kind(ticket)
                self.put_back(ticket)

    def _unskip(self) -> None:
        self._candidates = None
        skipped, self._skipped = self._skipped, []
        for ticket in skipped:
            if ticket.is_waiting and not math.isnan(ticket.counter):
                self.put_back(ticket)

    def _next_fitting(self, bounds: PromptBounds) -> Ticket | None:
        if not self._lengths:
            return None
        if self._candidates is None and not self._gather(bounds, MAX_GATHERED):
            if (passed := self._pass_others(bounds)) is not None:
                return passed
            self._gather(bounds, math.inf)
        while self._candidates:
            if (found := self._next_candidate(self._candidates, bounds)) is not None:
                return found
            self._gather(bounds, math.inf)
        return None

    def _gather(self, bounds: PromptBounds, most: float) -> bool:
        """Find those that may be placed in this turn, unless they are more; room only shrinks in it."""
        fitting = [lengths.fitting(bounds.blocked(kind)) for kind, lengths in self._lengths.items()]
        if sum(map(len, fitting)) > most:
            return False
        self._candidates = [(ticket.counter, sequence, ticket) for found in fitting for _, sequence, ticket in found]
        heapq.heapify(self._candidates)
        return True

    def _next_candidate(self, candidates: list[Entry], bounds: PromptBounds) -> Ticket | None:
        num_vain = 0
        while candidates and num_vain < MAX_VAIN:
            entry = heapq.heappop(candidates)
            ticket = entry[2]
            if not _is_valid(entry, is_free=False) or self._has_grown(ticket):
                continue
            if not has_to_wait(ticket, bounds.blocked(ticket.kind)):
                self.take_out(ticket)
                return ticket
            num_vain += 1
        return None

    def _pass_others(self, bounds: PromptBounds) -> Ticket | None:
        """The first by counter that may find room, where nearly all may; others are skipped in this turn."""
        for _ in range(MAX_GATHERED):
            ticket = self._first(self._bounded)
            if ticket is None:
                return None
            if not has_to_wait(ticket, bounds.blocked(ticket.kind)):
                self.take_out(ticket)
                return ticket
            self._skipped.append(ticket)
        return None

    def _take_first(self, heap: list[Entry]) -> Ticket | None:
        ticket = self._first(heap)
        if ticket is not None:
            self.take_out(ticket)
        return ticket

    def _first(self, heap: list[Entry]) -> Ticket | None:
        """The one with the smallest counter, whose entry goes."""
        while heap:
            entry = heapq.heappop(heap)
            if _is_valid(entry, is_free=heap is self._free) and not self._has_grown(entry[2]):
                return entry[2]
        return None

    def _standing(self, ticket: Ticket) -> tuple[float, int]:
        return self._service[ticket.request.terms.tenant], ticket.sequence

    def _has_grown(self, ticket: Ticket) -> bool:
        """The tenant's counter has grown since it came to lie here; it lies at its place then."""
        if self._service[ticket.request.terms.tenant] <= ticket.counter:
            return False
        self.put_back(ticket)
        return True


def has_to_wait(ticket: Ticket, blocked: tuple[float, float]) -> bool:
    """No worker has room for its prompt now, by the bounds of its kind."""
    more_than, at_most = blocked
    return more_than < ticket.request.num_prompt_tokens <= at_most


class OldestHeads:
    """First requests by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []

    def put(self, ticket: Ticket) -> None:
        """It is the first of its tenant now, and stays it as long as it waits."""
        heapq.heappush(self._heap, (ticket.arrived, ticket.sequence, ticket))

    def oldest(self) -> Ticket | None:
        """The one that arrived first."""
        while self._heap and not self._heap[0][2].is_waiting:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def first(self, count: int) -> list[Ticket]:
        """The ones that arrived first, in order."""
        found: list[tuple[float, int, Ticket]] = []
        while len(found) < count and self.oldest() is not None:
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [ticket for _, _, ticket in found]

    def sweep(self, num_heads: int) -> None:
        """Drop entries of requests that left, where they outnumber the others."""
        if len(self._heap) > 2 * num_heads + MAX_STALE:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapq.heapify(self._heap)


def _is_valid(entry: Entry, *, is_free: bool) -> bool:
    """It was not replaced by a later one."""
    counter, _, ticket = entry
    return ticket.is_waiting and ticket.counter == counter and (ticket.kind is None) is is_free
