"""One try of a request at one decode worker: where the session's messages go, and how the try ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from stratos.common.errors import NotFound, StratosError, StreamMoved
from stratos.core.generation import ChoiceDelta, RequestDelta
from stratos.core.requests.records import RequestKey
from stratos_gateway.generation.journal import JournalConflict
from stratos_gateway.generation.recovery import Cause, cause_of
from stratos_gateway.generation.suspicion import SETTLED_STEPS
from stratos_gateway.generation.transcript import Transcript
from stratos_gateway.sessions.session import WorkerSession

_log = logging.getLogger(__name__)
FENCED = "fenced_attempt", "duplicate_attempt"
"""Words of a worker for an attempt that is not newer than the one that it has of the request."""


class LabelledRequest(Protocol):
    """A request with a name for log lines, which is made where it is asked for."""

    @property
    def label(self) -> str:
        """The name."""
        ...


class Attempt:
    """Sink of one attempt; after ``close`` nothing of it counts any more.

    Args:
        transcript: of the generation.
        session: with the worker.
        key: request and epoch.
        named: has the request's name for log lines.
        on_settled: called once when the request has settled at the worker.
        is_taken_over: it goes on with what another gateway began there.
    """

    def __init__(
        self,
        transcript: Transcript,
        session: WorkerSession,
        key: RequestKey,
        named: LabelledRequest,
        on_settled: Callable[[], None],
        *,
        is_taken_over: bool = False,
    ) -> None:
        self._is_taken_over = is_taken_over
        self.is_settled = False
        """The worker has made some steps after the one of the first token."""
        self.was_taken = True
        """The worker has said that it took the request, or has not been lost."""
        self._transcript = transcript
        self._session = session
        self._key = key
        self._named = named
        self._on_settled = on_settled
        self._num_before = transcript.num_output_tokens
        self._first_step: int | None = None
        """Step of the worker with the first token of this attempt."""
        self._is_over_there = False
        self._end: asyncio.Future[Cause | None] = asyncio.get_running_loop().create_future()

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self._named.label

    async def wait(self) -> Cause | None:
        """Wait for the end: ``None`` when all choices ended, else why another attempt is due.

        Raises:
            StratosError: the client's answer.
        """
        return await self._end

    def close(self) -> None:
        """Take no more messages; the worker is told unless it knows."""
        if self._is_over_there:
            self._session.release(self._key)
        else:
            self._session.cancel(self._key)

    def end_choice(self, index: int) -> None:
        """The gateway has ended a choice: the worker is told, and the attempt is over with the last one."""
        if not self._end.done():
            self._cancel(index)
            if self._transcript.is_complete:
                self._settle(None)

    def on_output(self, output: RequestDelta, now_s: float) -> None:
        """Take news of the request; nothing is journalled after the end."""
        if output.prompt_logprobs and not self._end.done():
            self._transcript.accept_prompt_logprobs(output.prompt_logprobs)
        for choice in output.choices:
            self._accept(choice, now_s)
        if output.receipt is not None:
            self._transcript.accept_receipt(output.receipt, is_new=not self._is_taken_over)
        if output.drafts is not None:
            self._transcript.accept_drafts(self._key.attempt, output.drafts)
        if output.error is not None:
            self._fail_there(output.error)
        self._tell()

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        """Take news that are tokens of one choice and nothing else."""
        self._accept(delta, now_s)
        self._tell()

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        """Take one more token of choice 0, and nothing else."""
        if self.is_settled and not self._end.done() and self._transcript.pass_on(offset, token_id, now_s):
            return
        if not self._end.done():
            try:
                if self._transcript.accept_token(offset, token_id, now_s):
                    self._cancel(0)
            except JournalConflict as error:
                self._contradict(error)
        self._tell()

    def _tell(self) -> None:
        """Let the client's side have what was accepted."""
        if not self.is_settled:
            self._note_step()
        if self._transcript.publish() and not self._end.done():
            self._is_over_there = True  # each choice ended there, or its Cancel is on the way
            self._settle(None)

    def on_failure(self, error: StratosError) -> None:
        """This side cannot go on: the client is told, and ``close`` tells the worker."""
        if not self._end.done():
            self._end.set_exception(error)

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None:
        """The session broke."""
        self.was_taken = was_taken
        self._is_over_there = True
        self._settle(Cause(cause))

    def _note_step(self) -> None:
        if self._first_step is None:
            if self._transcript.num_output_tokens > self._num_before:
                self._first_step = self._session.step
        elif self._session.step >= self._first_step + SETTLED_STEPS:
            self.is_settled = True
            self._on_settled()

    def _accept(self, choice: ChoiceDelta, now_s: float) -> None:
        if self._end.done():
            return
        try:
            if self._transcript.accept(choice, now_s):
                self._cancel(choice.index)
        except JournalConflict as error:
            self._contradict(error)

    def _cancel(self, index: int) -> None:
        """Tell the worker that a choice has ended here, and with how many tokens: it may have decoded more."""
        self._session.cancel(self._key, {index: len(self._transcript.choices[index].ids)})

    def _contradict(self, error: JournalConflict) -> None:
        _log.error("attempt %d of %s: %s", self._key.attempt, self.label, error)
        self._settle(Cause.CONFLICT)

    def _fail_there(self, error: StratosError) -> None:
        self._is_over_there = True
        cause = cause_of(error)
        if self._is_taken_over and isinstance(error, NotFound):
            cause = Cause.MISSED
        elif error.code in FENCED:
            error = StreamMoved("another gateway has taken this stream over")
        if cause is not None:
            self._settle(cause)
        elif not self._end.done():
            self._end.set_exception(error)

    def _settle(self, cause: Cause | None) -> None:
        if not self._end.done():
            self._end.set_result(cause)
