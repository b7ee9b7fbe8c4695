"""A queue of the router in front of one server."""

from __future__ import annotations

from typing import Any

from stratos.common.clock import FakeClock
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.settings import QueueConfig
from tests.support.worlds.fleet_samples import make_request


class QueueWorld:
    """A queue in front of a server that takes one request at a time."""

    def __init__(self, **changes: Any) -> None:
        self.clock = FakeClock()
        self.queue = PlacementQueue(QueueConfig(**changes))
        self.count = 0

    def push(self, **changes: Any) -> Ticket:
        self.count += 1
        changes = {"request_id": f"req-{self.count}", **changes}
        return self.queue.push(make_request(**changes), self.clock.now())[0]

    def serve(self) -> Ticket | None:
        """Dispatch one request."""
        room = [True]

        def place(ticket: Ticket) -> str | PlacementVerdict:
            return room.pop() and ticket.request.request_id if room else PlacementVerdict.BLOCKED

        found = list(self.queue.dispatch(self.clock.now(), place))
        assert len(found) <= 1
        return found[0].ticket if found else None
