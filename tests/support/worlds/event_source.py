"""An ``EventSource`` by the rules of the HTML standard (WHATWG, 9.2), as far as a client without a page has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx


@dataclass
class EventSource:
    """One that comes back until it is told not to.

    Args:
        http: with the headers that a page's proxy would add.
        url: of the stream.
        wait: called with the milliseconds before it comes back.
    """

    http: httpx.AsyncClient
    url: str
    wait: Callable[[int], Awaitable[None]]
    last_event_id: str = ""
    retry_ms: int = 3000
    """As browsers have it, until the server says another one."""
    messages: list[tuple[str, str, str]] = field(default_factory=list)
    """Type, data and id of each event that a page would get."""
    statuses: list[int] = field(default_factory=list)
    _kind: str = ""
    _data: str = ""
    _id: str = ""

    async def run(self) -> None:
        """Until a status other than 200, or another type of content, ends it."""
        while await self._connect():
            await self.wait(self.retry_ms)

    async def _connect(self) -> bool:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        self._kind = self._data = ""
        self._id = self.last_event_id
        try:
            async with self.http.stream("GET", self.url, headers=headers) as answer:
                self.statuses.append(answer.status_code)
                if answer.status_code != 200 or not answer.headers["content-type"].startswith("text/event-stream"):
                    return False
                async for line in answer.aiter_lines():
                    self._take(line)
        except httpx.TransportError:
            pass
        return True

    def _take(self, line: str) -> None:
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data += value + "\n"
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)

    def _dispatch(self) -> None:
        self.last_event_id = self._id
        if self._data:
            self.messages.append((self._kind or "message", self._data.removesuffix("\n"), self._id))
        self._kind = self._data = ""
