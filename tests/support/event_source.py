"""An ``EventSource`` as the WHATWG's HTML standard has it (9.2): it comes back by itself, and says what it had last."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import httpx

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass
class EventSource:
    """Reads one address until it is closed, or refused."""

    url: str
    last_event_id: str = ""
    retry_s: float = 3.0
    num_losses: int = 0
    """Connections that ended, with an error or without."""
    _data: str = ""
    _id: str = ""

    async def messages(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        """Data of each event; the caller leaves when it has enough.

        Raises:
            AssertionError: an answer that is no stream, which an ``EventSource`` does not ask for again.
        """
        while True:
            try:
                async for message in self._connect(http):
                    yield message
            except httpx.TransportError:
                pass  # a network error, as the standard calls it
            self.num_losses += 1
            self._data, self._id = "", self.last_event_id
            await anyio.sleep(self.retry_s)

    async def _connect(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        async with http.stream("GET", self.url, headers=headers, timeout=None) as answer:
            assert answer.status_code == 200, answer.status_code
            assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
            rest = ""
            async for part in answer.aiter_text():
                *lines, rest = _LINE_END.split(rest + part)
                for message in filter(None, map(self._take, lines)):
                    yield message

    def _take(self, line: str) -> str:
        """Process a line; returns what is dispatched with it."""
        if not line:
            self.last_event_id, found, self._data = self._id, self._data, ""
            return found.removesuffix("\n")
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data += f"{value}\n"
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_s = int(value) / 1000
        return ""
