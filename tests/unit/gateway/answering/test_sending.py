"""The end of a stream leaves together with what came last: one write, and one wake-up of the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.errors import ResponseStoreDown
from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.sending import ChunkSender
from stratos_gateway.answering.whole import first_part, rendered
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import DONE, EventStream
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry, Usage
from tests.support.waiting import LIMIT_S


class ShortAnswer(ChunkOutput):
    """One token after the other; ``tells_end`` where it knows which is the last."""

    def __init__(self, *, tells_end: bool, texts: Sequence[str] = ("a", "b")) -> None:
        self._tells_end = tells_end
        self.texts, self._left = texts, [*texts]
        self.confirmed = ""

    @property
    def usage(self) -> Usage:
        return Usage(1, 2)

    @property
    def is_ended(self) -> bool:
        return self._tells_end and not self._left

    async def news(self) -> list[ChoiceChunk]:
        return [ChoiceChunk(0, self._left.pop(0), [], [], None, is_first=False)] if self._left else []

    async def finish(self) -> list[ChoiceChunk]:
        raise AssertionError("this answer is streamed")

    def end_choice(self, index: int, reason: str) -> None: ...

    def confirm(self, chunks: Any) -> None:
        self.confirmed += "".join(chunk.text for chunk in chunks)


async def sent_by(
    output: ShortAnswer, *, can_keep: bool = True, threads: list[threading.Thread] | None = None
) -> list[bytes]:
    """Bodies of the writes of one answer, whose parts note the threads that they are made in."""
    sent = list[bytes]()

    def stream_part(chunks: list[ChoiceChunk]) -> bytes:
        if threads is not None:
            threads.append(threading.current_thread())
        return b"".join(chunk.text.encode() for chunk in chunks)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def keep(usage: object) -> None:
        assert output.confirmed == "".join(output.texts[: 1 if output.is_ended else 2])
        if not can_keep:
            raise ResponseStoreDown

    renderer = SimpleNamespace(
        stream_part=stream_part, stream_end=lambda usage: DONE, stream_failure=lambda error: b"failed", keep_alive=b":",
        answer=SimpleNamespace(id=""), hold=lambda: lambda: None,
    )  # fmt: skip
    prepared = SimpleNamespace(options=SimpleNamespace(stream=True), renderer=renderer, check=None, keep=keep)
    trace = SimpleNamespace(label=lambda name: name)
    request = SimpleNamespace(
        prepared=prepared, screen=None, has_answered=False, when_sent=None, begin_answer=lambda output: None,
        end_whole=lambda: None, fail_in_stream=lambda error: None,
        exchange=SimpleNamespace(stream=EventStream(send, {}), span=SimpleNamespace(trace=trace)),
    )  # fmt: skip
    await ChunkSender(HttpLimits()).send(cast("Any", request), output)
    return sent


@pytest.mark.parametrize(("tells_end", "expected"), [(True, [b"a", b"b" + DONE]), (False, [b"a", b"b", DONE])])
async def test_the_last_chunk_leaves_with_the_end(*, tells_end: bool, expected: list[bytes]) -> None:
    output = ShortAnswer(tells_end=tells_end)
    assert await sent_by(output) == expected
    assert output.confirmed == "ab"


async def test_what_could_not_be_kept_ends_behind_the_last_chunk() -> None:
    output = ShortAnswer(tells_end=True)
    assert await sent_by(output, can_keep=False) == [b"a", b"b", b"failed"]
    assert output.confirmed == "ab"


async def test_a_long_first_part_is_made_beside_the_event_loop_and_later_ones_on_it() -> None:
    threads, texts = list[threading.Thread](), ("x" * 20_000, "b")
    await sent_by(ShortAnswer(tells_end=True, texts=texts), threads=threads)
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


@pytest.mark.parametrize(
    ("text", "num_places", "is_on_loop"), [("short", 10, True), ("short", 100, False), ("x" * 20_000, 0, False)]
)
async def test_a_long_answer_is_rendered_beside_the_event_loop(*, text: str, num_places: int, is_on_loop: bool) -> None:
    threads = list[threading.Thread]()

    def body(chunks: object, usage: object) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return {"text": text}

    def stream_part(chunks: object) -> bytes:
        threads.append(threading.current_thread())
        return b"part"

    entry = TokenEntry(PositionLogprobs(TokenLogprob(1, -0.5, 1)), 0)
    chunk = ChoiceChunk(0, text, [1], [entry] * num_places, "stop", is_first=True)
    renderer = cast("Any", SimpleNamespace(body=body, stream_part=stream_part, hold=lambda: lambda: None))
    answer = await rendered(renderer, [chunk], Usage(1))
    assert answer.body == b'{"text":"' + text.encode() + b'"}'
    assert await first_part(renderer, [chunk]) == b"part"
    assert [thread is threading.current_thread() for thread in threads] == [is_on_loop] * 2


async def test_who_records_an_answer_waits_for_its_thread_though_its_request_has_ended() -> None:
    """The thread cannot be ended, and adds to the record."""
    log, begun, goes_on, is_over = list[str](), threading.Event(), threading.Event(), asyncio.Event()

    def body(chunks: object, usage: object) -> dict[str, Any]:
        begun.set()
        assert goes_on.wait(LIMIT_S)
        log.append("added")
        return {}

    def hold() -> Callable[[], None]:
        log.append("held")
        return release

    def release() -> None:
        log.append("released")
        is_over.set()

    renderer = cast("Any", SimpleNamespace(body=body, hold=hold))
    chunk = ChoiceChunk(0, "x" * 20_000, [1], [], "stop", is_first=True)
    asked = asyncio.create_task(rendered(renderer, [chunk], Usage(1)))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert log == ["held"]
    goes_on.set()
    await is_over.wait()
    assert log == ["held", "added", "released"]
