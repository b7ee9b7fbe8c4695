"""One attempt: what is journalled, what the worker is told, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.errors import (
    BadRequest,
    Busy,
    Draining,
    Internal,
    NotFound,
    Overloaded,
    StratosError,
    StreamMoved,
    WorkerLost,
)
from stratos.core.generation import Receipt
from stratos.core.requests.records import FinishReason, RequestKey
from stratos_gateway.generation.attempt import Attempt
from stratos_gateway.generation.journal import JournalConflict
from stratos_gateway.generation.recovery import Cause, cause_of
from tests.support.fakes.gateway_fakes import FakeSession, output
from tests.support.worlds.deltas import delta

KEY = RequestKey("r", 1)


class Transcript:
    """Records deltas; ``stops`` ends a choice by a stop string, ``conflicts`` refuses."""

    def __init__(self, *, stops: bool = False, conflicts: bool = False) -> None:
        self.stops, self.conflicts, self.is_complete = stops, conflicts, False
        self.tokens: list[int] = []
        self.receipts: list[Receipt] = []
        self.num_published = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens)

    @property
    def choices(self) -> list[Any]:
        return [SimpleNamespace(ids=self.tokens)]

    def accept(self, delta: Any, now_s: float) -> bool:
        if self.conflicts:
            raise JournalConflict("skipped")
        self.tokens += delta.token_ids
        self.is_complete = self.stops or delta.finish_reason is not None
        return self.stops

    def accept_token(self, offset: int, token_id: int, now_s: float) -> bool:
        return self.accept(delta(offset, [token_id]), now_s)

    def accept_receipt(self, receipt: Receipt, *, is_new: bool) -> None:
        self.receipts.append(receipt)

    def publish(self) -> bool:
        self.num_published += 1
        return self.is_complete


def make(*, is_taken_over: bool = False, **changes: bool) -> tuple[Attempt, Transcript, FakeSession]:
    transcript, session = Transcript(**changes), FakeSession(lambda sink, submission: None)
    attempt = Attempt(
        transcript,  # type: ignore[arg-type]
        session,  # type: ignore[arg-type]
        KEY,
        SimpleNamespace(label="r (client)"),
        lambda: None,
        is_taken_over=is_taken_over,
    )
    return attempt, transcript, session


async def test_what_a_worker_has_no_more_is_asked_for_elsewhere_if_it_was_another_gateways() -> None:
    attempt, _, _ = make(is_taken_over=True)
    attempt.on_output(output(KEY, error=NotFound("not here")), 0.0)
    assert await attempt.wait() is Cause.MISSED
    attempt, _, _ = make()
    attempt.on_output(output(KEY, error=NotFound("not here")), 0.0)
    with pytest.raises(NotFound):
        await attempt.wait()


@pytest.mark.parametrize("code", ["fenced_attempt", "duplicate_attempt"])
async def test_who_was_fenced_off_at_the_worker_says_that_the_stream_has_moved(code: str) -> None:
    attempt, _, _ = make(is_taken_over=True)
    attempt.on_output(output(KEY, error=BadRequest("an older one", code=code)), 0.0)
    with pytest.raises(StreamMoved):
        await attempt.wait()


async def test_an_attempt_that_ended_there_is_released_and_not_cancelled() -> None:
    attempt, transcript, session = make()
    attempt.on_output(output(KEY, 0, (1, 2), receipt=Receipt(queue_ns=3)), 0.0)
    attempt.on_output(output(KEY, 2, (3,), FinishReason.LENGTH), 0.0)
    assert await attempt.wait() is None
    attempt.close()
    assert (transcript.tokens, transcript.num_published) == ([1, 2, 3], 2)
    assert transcript.receipts == [Receipt(queue_ns=3)]
    assert (session.released, session.cancelled) == ([KEY], [])


def say_all(attempt: Attempt, offset: int) -> None:
    attempt.on_output(output(KEY, offset, (1,)), 0.0)


def say_token(attempt: Attempt, offset: int) -> None:
    attempt.on_token(offset, 1, 0.0)


def say_tokens(attempt: Attempt, offset: int) -> None:
    attempt.on_tokens(delta(offset, [1]), 0.0)


every_way = pytest.mark.parametrize("say", [say_all, say_tokens, say_token])


@every_way
async def test_a_stop_string_cancels_its_choice_at_the_worker(say: Callable[[Attempt, int], None]) -> None:
    attempt, _, session = make(stops=True)
    say(attempt, 0)
    assert await attempt.wait() is None
    assert session.cancelled == [(KEY, {0: 1})], "with what is charged of it"


@every_way
async def test_nothing_is_journalled_after_the_end(say: Callable[[Attempt, int], None]) -> None:
    attempt, transcript, session = make()
    attempt.on_lost("hang")
    say(attempt, 0)
    assert await attempt.wait() is Cause.HANG
    assert not transcript.tokens
    attempt.close()
    assert (session.released, session.cancelled) == ([KEY], [])


@every_way
async def test_a_conflict_ends_the_attempt_and_the_worker_is_told(say: Callable[[Attempt, int], None]) -> None:
    attempt, _, session = make(conflicts=True)
    say(attempt, 5)
    assert await attempt.wait() is Cause.CONFLICT
    attempt.close()
    assert session.cancelled == [(KEY, {})]


async def test_a_failure_of_this_side_is_the_clients_answer_and_the_worker_is_told() -> None:
    attempt, _, session = make()
    attempt.on_failure(Internal("a bug"))
    with pytest.raises(Internal):
        await attempt.wait()
    attempt.close()
    assert session.cancelled == [(KEY, {})]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Busy("full"), Cause.BUSY),
        (Overloaded("full"), Cause.BUSY),
        (Draining("leaving"), Cause.DRAIN),
        (WorkerLost("gone"), Cause.LOST),
        (BadRequest("no"), None),
    ],
)
async def test_an_error_of_the_worker_is_a_cause_or_an_answer(error: StratosError, cause: Cause | None) -> None:
    assert cause_of(error) is cause
    attempt, _, _ = make()
    attempt.on_output(output(KEY, error=error), 0.0)
    if cause is not None:
        assert await attempt.wait() is cause
        return
    with pytest.raises(type(error)):
        await attempt.wait()


async def test_an_attempt_settles_some_steps_after_its_first_token() -> None:
    settled: list[bool] = []
    session = FakeSession(lambda sink, submission: None, step=70)
    named = SimpleNamespace(label="r")
    attempt = Attempt(Transcript(), session, KEY, named, lambda: settled.append(True))  # type: ignore[arg-type]
    session.step = 90
    attempt.on_output(output(KEY, receipt=Receipt()), 0.0)
    session.step = 100
    attempt.on_output(output(KEY, 0, (1,)), 0.0)
    for offset, step in enumerate((101, 102, 103), start=1):
        session.step = step
        attempt.on_output(output(KEY, offset, (1,)), 0.0)
        assert not attempt.is_settled
    session.step = 104
    attempt.on_output(output(KEY, 4, (1,)), 0.0)
    attempt.on_output(output(KEY, 5, (1,)), 0.0)
    assert (attempt.is_settled, settled) == (True, [True])
