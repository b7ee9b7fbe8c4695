"""An ``EventSource`` by the rules of the HTML standard (WHATWG, 9.2), as far as a client without a page has them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import httpx

_LINE_END = re.compile("\r\n|\r|\n")


class EventMessage(NamedTuple):
    """An event that a page would get."""

    kind: str
    data: str
    id: str


async def _sleep(milliseconds: int) -> None:
    await anyio.sleep(milliseconds / 1000)


@dataclass
class EventSource:
    """One that comes back by itself until it is told not to, and says what it had last.

    Args:
        http: with the headers that a page's proxy would add.
        url: of the stream.
        wait: called with the milliseconds before it comes back.
    """

    http: httpx.AsyncClient
    url: str
    wait: Callable[[int], Awaitable[None]] = _sleep
    last_event_id: str = ""
    retry_ms: int = 3000
    """As browsers have it, until the server says another one."""
    statuses: list[int] = field(default_factory=list)
    num_losses: int = 0
    """Connections that ended, with an error or without, and were made again."""
    is_refused: bool = False
    """Another status than 200, or another type of content, has ended it."""
    _kind: str = ""
    _data: str = ""
    _id: str = ""

    async def messages(self) -> AsyncIterator[EventMessage]:
        """Events in order, until it is refused; the caller leaves when it has enough."""
        while True:
            self._kind, self._data, self._id = "", "", self.last_event_id
            try:
                async for message in self._connect():
                    yield message
            except httpx.TransportError:
                pass  # a network error, as the standard calls it
            if self.is_refused:
                return
            self.num_losses += 1
            await self.wait(self.retry_ms)

    async def _connect(self) -> AsyncIterator[EventMessage]:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        async with self.http.stream("GET", self.url, headers=headers, timeout=None) as answer:
            self.statuses.append(answer.status_code)
            kind = answer.headers.get("content-type", "").partition(";")[0]
            self.is_refused = answer.status_code != 200 or kind != "text/event-stream"
            if self.is_refused:
                return
            rest = ""
            async for part in answer.aiter_text():
                *lines, rest = _LINE_END.split(rest + part)
                for message in filter(None, map(self._take, lines)):
                    yield message

    def _take(self, line: str) -> EventMessage | None:
        """Process a line; returns what is dispatched with it."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data += f"{value}\n"
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> EventMessage | None:
        kind, data, self._kind, self._data = self._kind, self._data, "", ""
        self.last_event_id = self._id
        return EventMessage(kind or "message", data.removesuffix("\n"), self._id) if data else None
