"""One WebSocket connection: messages in, messages out, each within its bounds.

a message            at most ``max_bytes``, complete within ``message_s`` from its first byte, whatever is between;
                     while it is on its way it has a place among the bodies, for which it waits while a response is sent
messages unread      two, then the client is not read from
a client that takes  ``write_s``, then ``SlowClient``; pongs are left out while it does not read
nothing
pings of one read    the last one is answered
a close              the peer gets ``CLOSE_S`` to close as well, then the connection is dropped
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratos.common.errors import Draining, StratosError
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.sockets.frames import (
    CLOSE,
    NORMAL,
    PING,
    POLICY,
    PONG,
    SERVICE_RESTART,
    TEXT,
    TRY_AGAIN_LATER,
    Control,
    FrameFault,
    FrameReader,
    close_payload,
    encode_frame,
)

CLOSE_S = 5.0
_MAX_UNREAD = 2
_PLACE_POLL_S = 0.5


class Flow(Protocol):
    """State of the transport's buffers."""

    @property
    def write_paused(self) -> bool:
        """The client does not read as fast as it is sent to."""
        ...

    async def drain(self) -> None:
        """Wait until it does."""
        ...

    def pause_reading(self) -> None:
        """Read no more."""

    def resume_reading(self) -> None:
        """Read again."""


TakePlace = Callable[[Callable[[StratosError], None]], Callable[[], None]]
"""Takes a place for a message on its way, whose end it is told of if another one gets it; returns what gives it back.
Raises ``StratosError``."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds of one connection."""

    max_bytes: int
    message_s: float
    write_s: float


class SocketConnection:
    """Belongs to the event loop.

    Args:
        transport: whose head was answered.
        flow: of the transport.
        bounds: of messages and times.
        take_place: for each message that does not arrive at once.
    """

    def __init__(
        self, transport: asyncio.Transport, flow: Flow, bounds: ConnectionBounds, take_place: TakePlace
    ) -> None:
        self._take_place = take_place
        self._give_back: Callable[[], None] | None = None
        self._transport = transport
        self._flow = flow
        self.bounds = bounds
        self._reader: FrameReader | None = FrameReader(bounds.max_bytes)
        self._unread: deque[str] = deque()
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.is_gone = False
        """The client has left, or was told to."""
        self.is_answering = False
        """A response is sent: no message that comes ends it."""
        self.is_leaving = False
        """The gateway goes: nothing more is begun."""

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        found: Sequence[str | Control] = ()
        try:
            found = self._reader.feed(data) if self._reader is not None else ()
            self._take(found)
        except FrameFault as fault:
            self._reader = None  # where the next frame begins is not known
            self.close(fault.code, fault.reason)
        if len(self._unread) >= _MAX_UNREAD:
            self._flow.pause_reading()
        self._watch_message(is_next=any(isinstance(one, str) for one in found))

    def _take(self, found: Sequence[str | Control]) -> None:
        ping: Control | None = None
        for one in found:
            if not isinstance(one, Control):
                if not self._is_closing:
                    self._unread.append(one)
                    self._news.set()
            elif one.kind == PING:
                ping = one
            elif one.kind == CLOSE:
                self.close()
                self._transport.close()
        if ping is not None and not self._is_closing:
            self._write(PONG, ping.payload)  # the last one answers those before it: each write is a call of the system

    def lost(self) -> None:
        """The connection has ended."""
        self._forget_message()
        self.is_gone = True
        self._news.set()

    def leave(self) -> None:
        """The gateway goes: end once nothing runs."""
        self.is_leaving = True
        self._news.set()

    async def next(self) -> str | None:
        """Wait for a message; ``None`` where none comes any more, or none is to be taken."""
        while not (self._unread or self.is_gone or self.is_leaving):
            self._news.clear()
            await self._news.wait()
        if self.is_gone or self.is_leaving:
            return None
        text = self._unread.popleft()
        self._flow.resume_reading()
        return text

    async def gone(self) -> None:
        """Wait until the client has left, while no one waits for a message."""
        while not self.is_gone:
            self._news.clear()
            await self._news.wait()

    async def send(self, text: bytes) -> None:
        """Send a message; nothing where the client has left.

        Raises:
            SlowClient: it takes nothing.
        """
        if self.is_gone or self._transport.is_closing():
            return
        self._transport.write(encode_frame(TEXT, text))
        if self._flow.write_paused:
            try:
                async with asyncio.timeout(self.bounds.write_s):
                    await self._flow.drain()
            except TimeoutError as error:
                self._transport.abort()
                raise SlowClient from error

    def ping(self) -> None:
        """Say that a silent connection lives."""
        self._write(PING, b"")

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close the connection, and wait for the client to do so, for a while."""
        if self._is_closing:
            return
        self._is_closing = self.is_gone = True
        self._news.set()
        self._write(CLOSE, close_payload(code, reason))
        self._forget_message()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)

    def close_for_restart(self) -> None:
        """Close it since the gateway goes: the client may come back at once, to another one."""
        self.close(SERVICE_RESTART, "this gateway is leaving; connect again")

    def _write(self, kind: int, payload: bytes) -> None:
        if not (self._transport.is_closing() or self._flow.write_paused):
            self._transport.write(encode_frame(kind, payload))

    def _watch_message(self, *, is_next: bool) -> None:
        """A message that has begun has a place, and does not get for ever.

        Args:
            is_next: what has begun is not what had begun before.
        """
        if self._is_closing or self._reader is None:
            return
        if is_next or self._reader.is_between:
            self._forget_message()
        if self._reader.is_between or self._timer is not None:
            return
        try:
            self._give_back = self._take_place(self._on_no_place)
        except StratosError as error:
            self._on_no_place(error)
        else:
            self._timer = asyncio.get_running_loop().call_later(self.bounds.message_s, self._on_late)

    def _on_no_place(self, error: StratosError) -> None:
        """The message cannot be taken: it waits while a response is sent, else nothing more is read."""
        if self.is_answering and not isinstance(error, Draining):
            self._forget_message()
            self._flow.pause_reading()
            self._timer = asyncio.get_running_loop().call_later(_PLACE_POLL_S, self._on_place_time)
            return
        self._reader = None
        if isinstance(error, Draining):
            self.close_for_restart()
        else:
            self.close(TRY_AGAIN_LATER, error.message)

    def _on_place_time(self) -> None:
        self._timer = None
        if len(self._unread) < _MAX_UNREAD:
            self._flow.resume_reading()
        self._watch_message(is_next=False)

    def _on_late(self) -> None:
        self.close(POLICY, f"a message did not arrive within {self.bounds.message_s:g} s")

    def _forget_message(self) -> None:
        """None is on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._give_back is not None:
            self._give_back()
            self._give_back = None
