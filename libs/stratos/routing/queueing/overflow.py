"""Overflow: a request that may go elsewhere waits here only for so long, and leaves with ``WaitTooLong``.

It leaves at once where the expected wait is too long already, and where the queue has no place for it.
"""

from __future__ import annotations

import math

from stratos.common.errors import Overloaded, StratosError, WaitTooLong
from stratos.core.placement import PlacementRequest
from stratos.routing.queueing.ticket import Ticket

SLACK_S = 0.05
"""A request whose time is over so shortly before it may leave has waited too long, too."""


def may_leave(request: PlacementRequest) -> bool:
    """It may go elsewhere."""
    return request.overflow_after_ms > 0


def longest_wait_s(request: PlacementRequest) -> float:
    """Seconds in one call after which the request leaves; infinite for one that may go nowhere else."""
    return request.overflow_after_ms / 1000 if may_leave(request) else math.inf


def full_queue(request: PlacementRequest, error: Overloaded) -> StratosError:
    """The answer to a request that finds no place in the queue, or loses it."""
    return WaitTooLong(error.message, after_s=error.after_s) if may_leave(request) else error


def wait_too_long(ticket: Ticket, now: float) -> WaitTooLong | None:
    """The answer to an expired request that may leave by now; ``None`` for another one."""
    longest_s = longest_wait_s(ticket.request)
    return WaitTooLong(f"not placed within {longest_s:g} s") if now - ticket.asked_at >= longest_s - SLACK_S else None
