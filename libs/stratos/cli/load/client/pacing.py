"""Open and closed loops: when each request is sent, and from when its latency counts.

In an open loop each session begins at its intended arrival, whatever became of earlier ones; later turns of a session
follow the answer before them, as a reader's do.  In a closed loop a stream's next session begins when its last one has
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from stratos.cli.load.measured import MeasuredRequest, TimedAnswer
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn


class RequestSender(Protocol):
    """Makes and sends requests."""

    def prepare(self, session: PlannedSession, turn: PlannedTurn) -> bytes:
        """The body of a request, made before it is due."""
        ...

    async def send(self, session: PlannedSession, body: bytes) -> TimedAnswer:
        """Send a prepared request and read its answer to the end; failures are in the answer."""
        ...


class Pacer:
    """Drives one run; belongs to the event loop.

    Args:
        sender: of requests.
        now: seconds of the run's clock, which timers of the event loop follow.
        on_sent: is told of each request that is sent.
        on_measured: is given each request that has ended.
    """

    def __init__(
        self,
        sender: RequestSender,
        now: Callable[[], float],
        on_sent: Callable[[], None],
        on_measured: Callable[[MeasuredRequest], None],
    ) -> None:
        self._sender = sender
        self._now = now
        self._on_sent = on_sent
        self._on_measured = on_measured

    async def open_loop(self, sessions: Iterator[PlannedSession]) -> None:
        """Begin each session at its time and wait for all answers."""
        began_s = self._now()
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                body = self._sender.prepare(session, session.turns[0])
                await self._sleep_until(began_s + session.at_s)
                group.create_task(self._follow(session, began_s + session.at_s, body))

    async def closed_loop(self, sessions: Iterator[PlannedSession], num_streams: int, end_s: float) -> None:
        """Keep so many streams open; none begins a session after ``end_s``."""

        async def stream() -> None:
            for session in sessions:
                # The time to make the body is the client's, not the server's: it is over before the request is due.
                body = self._sender.prepare(session, session.turns[0])
                await self._follow(session, self._now(), body)
                if self._now() >= end_s:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(num_streams):
                group.create_task(stream())

    async def _follow(self, session: PlannedSession, intended_s: float, body: bytes) -> None:
        for number, turn in enumerate(session.turns):
            if number:
                intended_s = self._now() + turn.think_s
                body = self._sender.prepare(session, turn)
                await self._sleep_until(intended_s)
            self._on_sent()
            answer = await self._sender.send(session, body)
            self._on_measured(MeasuredRequest(session=session, turn=turn, intended_s=intended_s, answer=answer))
            if answer.failure:
                return

    async def _sleep_until(self, time_s: float) -> None:
        # Also where it is late: answers are read between two requests of a burst.
        await asyncio.sleep(max(0.0, time_s - self._now()))
