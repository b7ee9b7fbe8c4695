"""A request that waits, and what a try to place it comes to."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stratos.core.placement import PlacementRequest
from stratos.routing.admission import Ask

T = TypeVar("T")


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
    wakes_by: float = field(default=-math.inf)
    """When it expires where no worker of its model may be chosen by ``expires``, if that is later."""
    sequence: int = field(default=0)
    is_waiting: bool = field(default=False)
    ask: Ask | None = field(default=None, repr=False)
    """Its needs as worked out before, since it is tried many times."""
    counter: float = field(default=math.nan, repr=False)
    """Its tenant's counter by which it lies in a heap; not a number where it lies in none."""
    queue_samples: tuple[int, ...] = field(default=(), repr=False)
    """Pairs: milliseconds of its present call, and requests that were before it then."""
    kind: Hashable | None = field(default=None, repr=False)
    """Needs beside room for its prompt; ``None`` where it has to be tried."""

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
