"""Outbox of reports to one router about ended attempts: many in one call, kept until the router has them.

Reports that came during a call go with the next one, so a mass cancel costs a few calls.  A router that is away is
told when it is back; above ``MAX_REPORTS`` the oldest ones are given up, counted, and the bookings end by their lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from stratos.common.background import gather_more
from stratos.common.errors import Draining, StratosError, WorkerLost
from stratos.core.placement import AttemptReport

_log = logging.getLogger(__name__)
MAX_REPORTS = 65_536
MAX_PER_CALL = 1024

Send = Callable[[Sequence[AttemptReport]], Awaitable[None]]
"""Raises ``WorkerLost`` or ``Draining`` when the router has not got them."""


class Outbox:
    """Belongs to the event loop.

    Args:
        send: one call to the router.
        on_dropped: hears how many reports were given up.
    """

    def __init__(self, send: Send, on_dropped: Callable[[int], None]) -> None:
        self._send = send
        self._on_dropped = on_dropped
        self._reports: deque[AttemptReport] = deque()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: AttemptReport) -> None:
        """Queue a report."""
        if len(self._reports) >= MAX_REPORTS:
            self._reports.popleft()
            self._on_dropped(1)
        self._reports.append(report)
        self._news.set()

    async def wait(self) -> None:
        """Until there is something to send."""
        await self._news.wait()
        await gather_more(self._reports.__len__, MAX_PER_CALL)

    async def flush(self) -> None:
        """Send everything that waits.

        Raises:
            WorkerLost, Draining: the router did not take it; what it has not got stays here.
        """
        while self._reports:
            batch = [self._reports.popleft() for _ in range(min(MAX_PER_CALL, len(self._reports)))]
            try:
                await self._send(batch)
            except (WorkerLost, Draining, asyncio.CancelledError):
                self._reports.extendleft(reversed(batch))  # sent twice does no harm
                raise
            except StratosError as error:
                _log.error("a router refuses %d reports: %s", len(batch), error.message)
                self._on_dropped(len(batch))
        self._news.clear()
