"""Positions of waiting requests over time: how many were before each one, for its receipt.

A request is looked at when it comes, and at ages that double, so that each has few samples and a look costs nothing
where none is due.  Before it are those of its class that came earlier, and all of higher classes; fairness and ageing
may let others pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stratos.routing.queueing.ticket import Ticket

AGES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class PositionLog:
    """Requests by the age at which they are looked at next."""

    def __init__(self) -> None:
        self._due: list[deque[Ticket]] = [deque() for _ in AGES_S]

    def begin(self, ticket: Ticket, num_before: int) -> None:
        """A request came; one that nothing is before has no first sample."""
        if num_before:
            ticket.queue_samples = (0, num_before)
        self._due[0].append(ticket)

    def sample(self, now: float, num_before: Callable[[Ticket], int]) -> None:
        """Note the positions that are due."""
        for index in reversed(range(len(AGES_S))):  # a request is noted once, however late the look is
            due, age_s = self._due[index], AGES_S[index]
            while due and now - due[0].asked_at >= age_s:
                ticket = due.popleft()
                if not ticket.is_waiting:
                    continue
                ticket.queue_samples += position_sample(ticket, now, num_before(ticket))
                if index + 1 < len(AGES_S):
                    self._due[index + 1].append(ticket)


def position_sample(ticket: Ticket, now: float, num_before: int) -> tuple[int, int]:
    """Milliseconds of a request's present call, and how many are before it now."""
    return max(0, round((now - ticket.asked_at) * 1000)), num_before
