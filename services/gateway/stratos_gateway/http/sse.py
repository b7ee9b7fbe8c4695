"""Server-sent events over ASGI: one write per engine step; and bounded patience with slow clients."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, cast

import orjson
from starlette.types import Message, Scope, Send

from stratos.common.background import BackgroundTasks

DONE = b"data: [DONE]\n\n"
PARTS = "stratos.parts"
"""Extension of ASGI: ``BodyParts`` of the connection."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class BodyParts(Protocol):
    """Parts of a body whose length is not known and that has begun, sent past ASGI."""

    @property
    def is_open(self) -> bool:
        """The client is there, and not behind."""
        ...

    def write(self, part: bytes) -> None:
        """Send a part, not empty."""


class _ClosedParts:
    """Stand-in where the server has no such extension."""

    is_open = False

    def write(self, part: bytes) -> None:
        """Never called."""


_CLOSED = _ClosedParts()


class SlowClient(Exception):
    """The client took nothing for too long."""


def encode_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as bytes of the stream."""
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


def encode_named_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Events whose name is their type."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n" for event in events
    )


def patient_send(send: Send, timeout_s: float) -> Send:
    """``send`` of ASGI, which waits while the client's buffers are full, for so long at most; raises ``SlowClient``.

    A write that does not wait, as nearly every one, needs no timer: a tenth of what a chunk costs.
    """

    async def pass_on(message: Message) -> None:
        work = cast("Coroutine[Any, Any, None]", send(message))
        try:
            awaited = work.send(None)
        except StopIteration:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await _rest(work, awaited)
        except TimeoutError as error:
            raise SlowClient from error

    return pass_on


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Run a coroutine to its end that has begun and waits for ``awaited``."""
    while True:
        try:
            found = yield awaited
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, found)
        try:
            awaited = step()
        except StopIteration:
            return


class EventStream:
    """One response; headers go out with the first write.

    Args:
        send: of ASGI, as ``patient_send`` makes it.
        scope: of ASGI.
    """

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._parts: BodyParts = scope.get("extensions", {}).get(PARTS, _CLOSED)
        self.is_started = False
        self.keep_alive = KEEP_ALIVE
        """Sent where a stream is silent for long."""
        self._is_ended = False
        self._num_writing = 0
        self._now = asyncio.get_running_loop().time
        self._wrote_s = self._now()

    async def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            SlowClient: the client does not read.
        """
        if not data:
            return
        self._wrote_s = self._now()
        self._num_writing += 1
        try:
            await self._begin()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._num_writing -= 1

    @property
    def can_write_now(self) -> bool:
        """The stream has begun, and its client reads as fast as it is sent to."""
        return self.is_started and not self._num_writing and self._parts.is_open

    def write_now(self, data: bytes) -> None:
        """Send bytes without a turn of any task, where ``can_write_now``."""
        if data:
            self._parts.write(data)
            self._wrote_s = self._now()

    @asynccontextmanager
    async def kept_alive(self, idle_s: float) -> AsyncIterator[None]:
        """Inside, a comment is sent whenever nothing was for ``idle_s``; 0 sends none.

        A timer, not a task: most streams never need the comment.
        """
        loop, comments = asyncio.get_running_loop(), BackgroundTasks()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left_s = self._wrote_s + idle_s - loop.time()
            if left_s <= 0:
                comments.spawn(self._comment(), name="keep-alive")
                left_s = idle_s
            timer = loop.call_later(left_s, look)

        if idle_s:
            timer = loop.call_later(idle_s, look)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            await comments.close()  # bounded by the time that a write gets

    async def _comment(self) -> None:
        # Where full buffers hold a write up the client would hear of a comment no sooner, perhaps after the end.
        if not (self._is_ended or self._num_writing):
            with suppress(SlowClient):  # the next event's write finds out as well
                await self.write(self.keep_alive)

    async def end(self, data: bytes) -> None:
        """Send the last bytes and end the response; raises like ``write``."""
        self._is_ended = True
        await self._begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _begin(self) -> None:
        if not self.is_started:
            self.is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
