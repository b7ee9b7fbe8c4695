"""Server-sent events over ASGI: one write per engine step; and bounded patience with slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol, cast

import orjson
from starlette.types import Message, Scope, Send

from stratos.common.background import BackgroundTasks
from stratos_gateway.access.patience import begin, rest

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
    return b"".join([b"data: " + orjson.dumps(event) + b"\n\n" for event in events])


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
        sending = cast("Coroutine[Any, Any, None]", send(message))
        is_sent, awaited = begin(sending)
        if is_sent:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await rest(sending, awaited)
        except TimeoutError as error:
            raise SlowClient from error

    return pass_on


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
        if self.can_write_now:
            return self.write_now(data)
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

    def kept_alive(self, idle_s: float) -> KeptAlive:
        """Inside, a comment is sent whenever nothing was for ``idle_s``; 0 sends none."""
        return KeptAlive(self, idle_s)

    def silent_s(self) -> float:
        """Seconds since something was written, or since it was made."""
        return self._now() - self._wrote_s

    def stay_silent(self) -> None:
        """Let no comment begin it: another stream is to answer."""
        self._is_ended = True

    async def comment(self) -> None:
        """Send the comment, unless something is being sent or the stream has ended."""
        # Where full buffers hold a write up the client would hear of a comment no sooner, perhaps after the end.
        if not (self._is_ended or self._num_writing):
            with suppress(SlowClient):  # the next event's write finds out as well
                await self.write(self.keep_alive)

    async def end(self, data: bytes) -> None:
        """Send the last bytes and end the response; raises like ``write``.

        One that was never begun and has none is of a client that has everything: an event source then asks no more.
        """
        self._is_ended = True
        if data or self.is_started:
            await self._begin()
        else:
            self.is_started = True
            await self._send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT, "headers": []})
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _begin(self) -> None:
        if not self.is_started:
            self.is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})


class KeptAlive(AbstractAsyncContextManager[None]):
    """Comments of a stream that is silent: by a timer, not a task, since most streams never need one.

    Args:
        stream: gets them.
        idle_s: of silence before each; 0 sends none.
    """

    def __init__(self, stream: EventStream, idle_s: float) -> None:
        self._stream = stream
        self._idle_s = idle_s
        self._comments: BackgroundTasks | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        """Watch from now on."""
        if self._idle_s:
            self._look_in(self._idle_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Watch no more; a comment that is being sent gets the time of a write."""
        if self._timer is not None:
            self._timer.cancel()
        if self._comments is not None:
            await self._comments.close()
        return None

    def _look(self) -> None:
        left_s = self._idle_s - self._stream.silent_s()
        if left_s <= 0:
            self._comments = self._comments or BackgroundTasks()
            self._comments.spawn(self._stream.comment(), name="keep-alive")
            left_s = self._idle_s
        self._look_in(left_s)

    def _look_in(self, left_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(left_s, self._look)
