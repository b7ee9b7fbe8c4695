"""The first requests of all tenants of a class, without sorting them all or trying what cannot fit.

    bounded   two heaps: by service counter, and for each kind by the length of the prompt, so that those that may
              find room are compared when they are few, and none is looked at when there are none
    free      have to be tried, since no bound says anything of them, or none was refused yet; a heap by counter
    skipped   before those that were placed in this turn, and too long for the room that there is
    tried     in this turn in vain

Counters grow while an entry lies in a heap, which is noticed when it is on top.  Entries of requests that left are
dropped when they are met, or when they outnumber the others.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Hashable
from typing import Protocol

from stratos.routing.queueing.fairness import ServiceCounters
from stratos.routing.queueing.ticket import Ticket

MAX_STALE = 256
"""Entries of requests that left, above as many as there are others, before they are swept out."""


MAX_FITTING = 48
"""So many that may find room are compared; of more, the one with the smallest counter comes soon.

Of n requests k may find room: comparing them takes k looks, passing others by their counters n / k.
"""


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
    """Requests of one kind, the shortest prompt on top."""

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.longest = 0

    def add(self, ticket: Ticket) -> None:
        num_tokens = ticket.request.num_prompt_tokens
        self.longest = max(self.longest, num_tokens)
        heapq.heappush(self.heap, (num_tokens, ticket.sequence, ticket))

    def fitting(self, kind: Hashable, blocked: tuple[float, float]) -> list[Ticket] | None:
        """Requests that may find room; ``None`` when they are many, or one could run nowhere, which a try finds out."""
        more_than, at_most = blocked
        if self.longest > at_most:
            return None
        found: list[Ticket] = []
        num_looked = num_stale = 0
        places = [0]
        while places and len(found) <= MAX_FITTING:  # no entry is shorter than the one above it
            place = places.pop()
            if place >= len(self.heap) or self.heap[place][0] > more_than:
                continue
            ticket = self.heap[place][2]
            places += (2 * place + 1, 2 * place + 2)
            num_looked += 1
            if not _is_bounded(ticket, kind):
                num_stale += 1
            elif not math.isnan(ticket.counter):
                found.append(ticket)
        if num_stale > len(found):
            self._drop(kind, num_looked)
        return found if len(found) <= MAX_FITTING else None

    def _drop(self, kind: Hashable, count: int) -> None:
        """Take requests that left from the shortest ones: each goes once, and the others are not looked at."""
        shortest = [heapq.heappop(self.heap) for _ in range(count)]
        for entry in shortest:
            if _is_bounded(entry[2], kind):
                heapq.heappush(self.heap, entry)

    def sweep(self, kind: Hashable) -> None:
        """Drop entries of requests that left."""
        self.heap = [entry for entry in self.heap if _is_bounded(entry[2], kind)]
        heapq.heapify(self.heap)


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
        self._candidates: list[Entry] | None = None
        """Those of ``bounded`` that may find room in this turn; ``None`` where that is not known."""
        self._skipped: list[Ticket] = []
        self._num_to_pass = 0
        """So many that do not fit are passed by their counters before those that do are looked for again."""
        self._tried: list[Ticket] = []
        self._epoch = 0
        self._is_tight = False
        """A request was refused, and some wait: while all are placed at once, bounds would only cost."""

    def add(self, ticket: Ticket) -> None:
        """It is the first of its tenant, or what it may have has changed."""
        ticket.counter = math.nan
        self._new.append(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """It was taken, or its tenant's counter has fallen."""
        ticket.counter = self._service[ticket.request.terms.tenant]
        entry = ticket.counter, ticket.sequence, ticket
        heapq.heappush(self._free if ticket.kind is None else self._bounded, entry)
        if self._candidates is not None and ticket.kind is not None:
            bisect.insort(self._candidates, entry)

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
        if self._is_tight and num_heads == len({ticket for ticket in self._new if ticket.is_waiting}):
            self._is_tight = False
        tried, self._tried = self._tried, []
        for ticket in tried:
            if ticket.is_waiting:
                self.add(ticket)
        self._unskip()

    def take(self, bounds: PromptBounds) -> Ticket | None:
        """The request to try next; the caller puts it back or aside."""
        if not self._is_tight:
            self._sort_in(NO_BOUNDS)
            return self._pop(self._free)
        self._sort_in(bounds)
        if bounds.epoch != self._epoch:
            self._epoch = bounds.epoch
            self._unskip()
        fitting, free = self._next_fitting(_Memo(bounds)), self._pop(self._free)
        if fitting is None or free is None:
            return fitting or free
        first, second = sorted((fitting, free), key=lambda ticket: (ticket.counter, ticket.sequence))
        self.put_back(second)
        return first

    def blocked_in_order(self, until: float, count: int, most: int) -> list[Ticket]:
        """Requests that wait for room, in their order, when ``take`` has returned ``None``.

        Args:
            until: younger ones are left out.
            count: of those that are wanted.
            most: are looked at.
        """
        self._unskip()
        looked: list[Ticket] = []
        found: list[Ticket] = []
        while len(looked) < most and len(found) < count and (ticket := self._pop(self._bounded)) is not None:
            looked.append(ticket)
            if ticket.arrived <= until:
                found.append(ticket)
        for ticket in looked:
            self.put_back(ticket)
        return found

    def sweep(self, num_heads: int) -> None:
        """Drop entries of requests that left, where they outnumber the others."""
        most = 2 * num_heads + MAX_STALE
        if sum(len(lengths.heap) for lengths in self._lengths.values()) > most:
            for kind, lengths in list(self._lengths.items()):
                lengths.sweep(kind)
                if not lengths.heap:
                    del self._lengths[kind]
        for heap in (self._bounded, self._free):
            if len(heap) > most:
                valid = (entry for entry in heap if _is_valid(entry, is_free=heap is self._free))
                heap[:] = {entry[2]: entry for entry in valid}.values()  # one that came back has two
                heapq.heapify(heap)

    def _sort_in(self, bounds: PromptBounds) -> None:
        new, self._new = self._new, []
        for ticket in new:
            if not ticket.is_waiting:
                continue
            ticket.kind = bounds.kind(ticket)
            if ticket.kind is not None:
                self._lengths.setdefault(ticket.kind, _Lengths()).add(ticket)
            self.put_back(ticket)

    def _unskip(self) -> None:
        self._candidates, self._num_to_pass = None, 0
        skipped, self._skipped = self._skipped, []
        for ticket in skipped:
            if ticket.is_waiting and math.isnan(ticket.counter):
                self.put_back(ticket)

    def _next_fitting(self, blocked: _Memo) -> Ticket | None:
        while self._candidates is None:
            if self._num_to_pass == 0:
                self._num_to_pass = MAX_FITTING
                self._gather(blocked)
                continue
            ticket = self._pop(self._bounded)
            if ticket is None or not has_to_wait(ticket, blocked[ticket.kind]):
                return ticket
            self._num_to_pass -= 1
            self._skipped.append(ticket)
        return self._next_candidate(self._candidates, blocked)

    def _next_candidate(self, candidates: list[Entry], blocked: _Memo) -> Ticket | None:
        while candidates:
            entry = candidates.pop(0)
            ticket = entry[2]
            if _is_valid(entry, is_free=False) and not has_to_wait(ticket, blocked[ticket.kind]):
                ticket.counter = math.nan
                return ticket
        return None

    def _gather(self, blocked: _Memo) -> None:
        """Find those that may be placed in this turn, in order, unless they are many; room only shrinks in it."""
        few: list[Ticket] = []
        for kind, lengths in self._lengths.items():
            found = lengths.fitting(kind, blocked[kind])
            if found is None or len(few) + len(found) > MAX_FITTING:
                return
            few += found
        for ticket in few:
            if ticket.counter != self._service[ticket.request.terms.tenant]:  # it has grown since
                self.put_back(ticket)
        self._candidates = sorted((ticket.counter, ticket.sequence, ticket) for ticket in few)

    def _pop(self, heap: list[Entry]) -> Ticket | None:
        while heap:
            entry = heapq.heappop(heap)
            if not _is_valid(entry, is_free=heap is self._free):
                continue
            ticket = entry[2]
            if self._service[ticket.request.terms.tenant] > ticket.counter:
                self.put_back(ticket)
                continue
            ticket.counter = math.nan
            return ticket
        return None


class _Memo(dict[Hashable, tuple[float, float]]):
    """Bounds by kind, each asked for once."""

    def __init__(self, bounds: PromptBounds) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, kind: Hashable) -> tuple[float, float]:
        found = self[kind] = self._bounds.blocked(kind)
        return found


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


def _is_bounded(ticket: Ticket, kind: Hashable) -> bool:
    return ticket.is_waiting and ticket.kind == kind


def _is_valid(entry: Entry, *, is_free: bool) -> bool:
    """It was not replaced by a later one."""
    counter, _, ticket = entry
    return ticket.is_waiting and ticket.counter == counter and (ticket.kind is None) is is_free
