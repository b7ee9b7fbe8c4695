"""One gateway's session, seen from the worker: which requests have news, and when to give a sign of life.

Records keep the tokens (see ``records``); a session only knows which of them have something unsent.  So a
gateway that reads slowly costs no memory beyond the logs, and the step loop never waits for a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, StratosError
from stratos.core.generation import RequestDelta
from stratos.core.ledger.usage import UsageCount
from stratos.core.requests.records import RequestKey
from stratos.core.step_watch import PROGRESS_INTERVAL_S
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.records import RequestRecord

MAX_REFUSALS = 1024
"""Refusals that wait to be sent; a gateway that lets more pile up does not read at all."""
MAX_DELTAS = 512
"""Requests of one message: between two messages the event loop turns, here and at the gateway."""
MAX_PLACES = 4096
"""Places with log probabilities in one message, but for those of its last request: a message has at most 64 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDeltas:
    """News of one or more steps."""

    step: int
    deltas: tuple[RequestDelta, ...]
    num_submits: int
    """Submits of the session so far, refused ones included."""
    num_places: int = 0
    """Places with log probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """Sign of life, read from the step loop."""

    step: int
    is_computing: bool
    slow_step_s: float
    num_submits: int
    """Submits of the session so far, refused ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Usage of ended attempts."""

    counts: tuple[UsageCount, ...]


class OutputSession:
    """Outgoing side of one bidirectional stream. Belongs to the event loop.

    Args:
        engine: of the worker.
        clock: of the worker.
        has_columns: its gateway reads single tokens from columns.
    """

    def __init__(self, engine: EngineClient, clock: Clock, *, has_columns: bool = False) -> None:
        self._engine = engine
        self._clock = clock
        self._has_columns = has_columns
        self.submit_of: dict[RequestKey, int] = {}
        """Number of the Submit that each open request of this session came with, where its gateway knows it by that."""
        self._dirty: dict[RequestKey, RequestRecord] = {}
        self._refusals: list[RequestDelta] = []
        self._counts: list[UsageCount] = []
        self._wake = asyncio.Event()
        self.is_closed = False
        self.num_submits = 0
        """Taken so far; sent along with every message."""

    def count_submit(self, number: int) -> None:
        """A Submit came.

        Args:
            number: that its gateway gave it; 0 from a build that does not number them.

        Raises:
            BadRequest: it is not the next one. The session must end: a number in the columns might mean two requests.
        """
        self.num_submits += 1
        if number not in (0, self.num_submits):
            raise BadRequest(f"the Submit that came as number {self.num_submits} says that it is number {number}")

    def note_submit(self, key: RequestKey, number: int) -> None:
        """The request of a Submit is open here; columns name it as its gateway did, and not at all where it did not."""
        if self._has_columns and number:
            self.submit_of[key] = number

    def mark(self, record: RequestRecord) -> None:
        """``record`` has something to send."""
        self._dirty[record.key] = record
        self._wake.set()

    def refuse(self, key: RequestKey, error: StratosError) -> None:
        """Answer a message that started no request."""
        if len(self._refusals) < MAX_REFUSALS:
            self._refusals.append(RequestDelta(key=key, error=error))
            self._wake.set()

    def report(self, counts: list[UsageCount]) -> None:
        """Send counts with the next sign of life, or at the end: they are not in a hurry."""
        self._counts += counts

    def forget(self, record: RequestRecord) -> None:
        """``record`` belongs to another session, or to none, from now on."""
        self._dirty.pop(record.key, None)
        self.submit_of.pop(record.key, None)

    def close(self) -> None:
        """Send what is there, then end."""
        self.is_closed = True
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Everything marked has been taken for sending."""
        return not self._dirty and not self._refusals

    async def messages(self) -> AsyncGenerator[StepDeltas | StepProgress | StepCounts, None]:
        """Messages to send, in order, until the session is closed; taking one moves the cursors of its records."""
        due_s = self._clock.now()
        while True:
            if not self.is_idle:
                yield self._drain()
            elif self.is_closed and not self._counts:
                return
            if self._counts and (self.is_closed or self._clock.now() >= due_s):
                counts, self._counts = self._counts, []
                yield StepCounts(counts=tuple(counts))
            if self._clock.now() >= due_s:
                yield self.progress()
                due_s = self._clock.now() + PROGRESS_INTERVAL_S
            if self.is_idle and not self.is_closed:
                await self._wait(due_s - self._clock.now())

    def progress(self) -> StepProgress:
        """The sign of life of this moment."""
        status = self._engine.status()
        return StepProgress(
            step=status.step,
            is_computing=status.is_computing,
            slow_step_s=status.slow_step_s,
            num_submits=self.num_submits,
        )

    async def _wait(self, timeout_s: float) -> None:
        self._wake.clear()
        await happens(self._wake, max(timeout_s, 0.001))

    def _drain(self) -> StepDeltas:
        deltas, self._refusals, num_places = self._refusals, [], 0
        taken = list[RequestKey]()
        for key, record in self._dirty.items():
            if len(taken) >= MAX_DELTAS or num_places >= MAX_PLACES:
                break  # the others have the next message
            taken.append(key)
            if (delta := record.drain()) is not None:
                deltas.append(delta)
                num_places += delta.num_places
        for key in taken:
            del self._dirty[key]
        step = self._engine.status().step
        return StepDeltas(step=step, deltas=tuple(deltas), num_submits=self.num_submits, num_places=num_places)
