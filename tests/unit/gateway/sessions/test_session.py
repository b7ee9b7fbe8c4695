"""Whose a token is: Submits say their number, columns name it, and what does not fit ends the session."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.clock import FakeClock
from stratos.common.errors import StratosError
from stratos.core.generation import ChoiceDelta, RequestDelta, Submission
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey, SamplingParams
from stratos_gateway.sessions.liveness import SessionConfig
from stratos_gateway.sessions.session import WorkerSession
from tests.support.fakes.gateway_fakes import worker


class Sink:
    """Records what comes, and when it is said to have come."""

    label = "r"

    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.times_s: list[float] = []
        self.short: list[ChoiceDelta] = []
        self.outputs: list[RequestDelta] = []
        self.lost: list[str] = []

    def on_output(self, output: RequestDelta, now_s: float) -> None:
        self.outputs.append(output)
        self.times_s.append(now_s)

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        self.short.append(delta)
        self.times_s.append(now_s)

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        self.tokens.append((offset, token_id))
        self.times_s.append(now_s)

    def on_failure(self, error: StratosError) -> None:
        raise AssertionError(error)

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None:
        self.lost.append(cause)


class Call:
    """A worker that says the messages of a test, and then nothing."""

    def __init__(self) -> None:
        self.messages: list[decode_pb2.SessionResponse] = []
        self.has_said_all = asyncio.Event()

    async def read(self) -> decode_pb2.SessionResponse:
        if not self.messages:
            self.has_said_all.set()
            await asyncio.Event().wait()
        return self.messages.pop(0)

    def cancel(self) -> None: ...


class Ticking(FakeClock):
    """Each look at it takes a while."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def submission(name: str) -> Submission:
    request = EngineRequest(
        key=RequestKey(name, 0), prompt_ids=(1,), choices=(ChoiceState(index=0),), sampling=SamplingParams(), seed=1
    )
    return Submission(request=request, model_digest="m", handoff_id="h")


def columns(
    submits: Sequence[int], offsets: Sequence[int], token_ids: Sequence[int], *, num_submits: int = 2
) -> decode_pb2.SessionResponse:
    tokens = decode_pb2.TokenColumns(submits=submits, offsets=offsets, token_ids=token_ids)
    return decode_pb2.SessionResponse(step_outputs=decode_pb2.StepOutputs(num_submits=num_submits, tokens=tokens))


class Opened:
    """A session whose worker is a list of messages, and two attempts."""

    def __init__(self) -> None:
        self.call = Call()
        self.session = WorkerSession(worker(1), Ticking(), SessionConfig(silence_timeout_s=9.0, step_timeout_s=9.0))
        self.session._call = self.call
        self.sinks = (Sink(), Sink())
        for name, sink in zip("ab", self.sinks, strict=True):
            self.session.submit(submission(name), sink)

    def sent(self) -> list[decode_pb2.SessionRequest]:
        return [self.session._outbox.get_nowait() for _ in range(self.session._outbox.qsize())]

    async def hear(self, *messages: decode_pb2.SessionResponse) -> None:
        self.call.messages += messages
        tasks = [asyncio.create_task(self.session._read()), asyncio.create_task(self.call.has_said_all.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_submits_say_their_numbers_and_columns_name_them() -> None:
    opened = Opened()
    assert [(m.submit.request_id, m.submit_number) for m in opened.sent()] == [("a", 1), ("b", 2)]
    await opened.hear(columns([2, 1], [0, 0], [7, 8]))
    assert [sink.tokens for sink in opened.sinks] == [[(0, 8)], [(0, 7)]]
    assert not opened.session.is_broken


@pytest.mark.parametrize(
    "message",
    [
        columns([1, 2], [0], [7, 8]),
        columns([1, 2], [0, 0], [7]),
        columns([1], [0, 0], [7, 8]),
        columns([1, 3], [0, 0], [7, 8]),
        columns([0, 1], [0, 0], [7, 8]),
        columns([1, 2], [0, 0], [7, 8], num_submits=3),
        decode_pb2.SessionResponse(progress=decode_pb2.Progress(num_submits=3)),
    ],
)
async def test_a_worker_that_does_not_agree_on_whose_tokens_are_loses_the_session(message: Any) -> None:
    opened = Opened()
    await opened.hear(message)
    assert opened.session.is_broken
    assert [(sink.tokens, sink.lost) for sink in opened.sinks] == [([], ["broken"])] * 2, "nobody gets a neighbour's"


@pytest.mark.parametrize("ends", ["cancel", "release"])
async def test_an_attempt_that_is_over_gets_no_token_and_is_kept_by_nothing(ends: str) -> None:
    opened = Opened()
    gone, stays = opened.sinks
    getattr(opened.session, ends)(RequestKey("a", 0))
    await opened.hear(columns([1, 2], [0, 0], [7, 8]))
    assert (gone.tokens, stays.tokens, opened.session.is_broken) == ([], [(0, 8)], False)
    seen = weakref.ref(gone)
    opened.sinks = (stays, stays)
    del gone
    gc.collect()
    assert seen() is None


async def test_a_message_has_one_time_and_tokens_alone_go_the_short_way() -> None:
    opened = Opened()
    pair = decode_pb2.ChoiceDelta(offset=0, token_ids=[7, 8])
    receipt = decode_pb2.Receipt(num_prompt_tokens=1)
    message = columns([1], [2], [9])
    message.step_outputs.outputs.add(request_id="a", deltas=[pair])
    message.step_outputs.outputs.add(request_id="b", deltas=[pair], receipt=receipt)
    await opened.hear(message)
    first, second = opened.sinks
    assert [list(delta.token_ids) for delta in first.short] == [[7, 8]]
    assert (len(first.outputs), len(second.outputs), second.short) == (0, 1, [])
    assert len({*first.times_s, *second.times_s}) == 1
