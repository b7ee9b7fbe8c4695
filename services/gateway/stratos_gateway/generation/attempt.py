"""One try of a request at one decode worker: where the session's news go, and how the try ended."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Sequence
from typing import Protocol

from stratos.common.errors import Busy, Draining, Overloaded, StratosError, WorkerLost
from stratos.core.requests.records import FinishReason, PositionLogprobs, RequestKey
from stratos_gateway.generation.journal import JournalConflict
from stratos_gateway.sessions.records import Receipt
from stratos_gateway.sessions.session import WorkerSession

_log = logging.getLogger(__name__)


class Cause(enum.StrEnum):
    """Why another attempt is due."""

    BUSY = "busy"
    DRAIN = "drain"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    HANG = "hang"
    CONFLICT = "conflict"

    @property
    def is_death(self) -> bool:
        """The worker was lost while it ran the request, which may have been the reason."""
        return self in (Cause.BROKEN, Cause.HANG, Cause.CONFLICT)

    @property
    def excludes_worker(self) -> bool:
        """The next attempt must not go to the same process; one that is merely full may have room again."""
        return self is not Cause.BUSY


def cause_of(error: StratosError) -> Cause | None:
    """Whether an error calls for another attempt; ``None`` when it is the client's answer."""
    if isinstance(error, Busy) or type(error) is Overloaded:
        return Cause.BUSY
    if isinstance(error, Draining):
        return Cause.DRAIN
    return Cause.BROKEN if isinstance(error, WorkerLost) else None


class AttemptOwner(Protocol):
    """The generation that an attempt belongs to."""

    @property
    def label(self) -> str:
        """The request's name for log lines."""

    def accept(
        self,
        index: int,
        offset: int,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs],
        finish_reason: FinishReason | None,
    ) -> bool:
        """Journal a delta; ``True`` when it ended the choice by a stop string."""

    def accept_prompt_logprobs(self, logprobs: Sequence[PositionLogprobs]) -> None:
        """Keep the log probabilities of the prompt."""

    def accept_receipt(self, receipt: Receipt) -> None:
        """Keep what the worker says about the prompt."""

    def publish(self) -> bool:
        """News may be taken; ``True`` when no choice is left."""


class Attempt:
    """Sink of one attempt; after ``close`` nothing of it counts any more.

    Args:
        owner: the generation.
        session: with the worker.
        key: request and epoch.
    """

    def __init__(self, owner: AttemptOwner, session: WorkerSession, key: RequestKey) -> None:
        self._owner = owner
        self._session = session
        self._key = key
        self._is_over_there = False
        self._end: asyncio.Future[Cause | None] = asyncio.get_running_loop().create_future()

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self._owner.label

    async def wait(self) -> Cause | None:
        """Wait for the end: ``None`` when all choices ended, else why another attempt is due.

        Raises:
            StratosError: the client's answer.
        """
        return await self._end

    def close(self) -> None:
        """Take no more news; the worker is told unless it knows."""
        if self._is_over_there:
            self._session.release(self._key)
        else:
            self._session.cancel(self._key)

    def on_delta(
        self,
        index: int,
        offset: int,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs],
        finish_reason: FinishReason | None,
    ) -> None:
        """New tokens of one choice."""
        if self._end.done():
            return
        try:
            if self._owner.accept(index, offset, token_ids, logprobs, finish_reason):
                self._session.cancel(self._key, (index,))
        except JournalConflict as error:
            _log.error("attempt %d of %s: %s", self._key.attempt, self.label, error)
            self._settle(Cause.CONFLICT)

    def on_prompt_logprobs(self, logprobs: Sequence[PositionLogprobs]) -> None:
        """Of the prompt."""
        if not self._end.done():
            self._owner.accept_prompt_logprobs(logprobs)

    def on_receipt(self, receipt: Receipt) -> None:
        """Where the prompt was computed."""
        self._owner.accept_receipt(receipt)

    def on_step_end(self) -> None:
        """All news of one message were delivered."""
        if self._owner.publish() and not self._end.done():
            self._is_over_there = True  # each choice ended there, or its Cancel is on the way
            self._settle(None)

    def on_error(self, error: StratosError) -> None:
        """The request failed at this worker."""
        self._is_over_there = True
        if (cause := cause_of(error)) is not None:
            self._settle(cause)
        elif not self._end.done():
            self._end.set_exception(error)

    def on_failure(self, error: StratosError) -> None:
        """This side cannot go on: the client is told, and ``close`` tells the worker."""
        if not self._end.done():
            self._end.set_exception(error)

    def on_lost(self, cause: str) -> None:
        """The session broke."""
        self._is_over_there = True
        self._settle(Cause(cause))

    def _settle(self, cause: Cause | None) -> None:
        if not self._end.done():
            self._end.set_result(cause)
