"""Server-sent events over ASGI: one write per engine step, bounded patience with slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class SlowClient(Exception):
    """The client took nothing for too long."""


def encode_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as bytes of the stream."""
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


class EventStream:
    """One response; headers go out with the first write.

    Args:
        send: of ASGI; it waits while the client's buffers are full.
        write_timeout_s: longest such wait.
    """

    def __init__(self, send: Send, write_timeout_s: float) -> None:
        self._send = send
        self._write_timeout_s = write_timeout_s
        self.is_started = False

    async def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            SlowClient: the client does not read.
        """
        if not data:
            return
        if not self.is_started:
            self.is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send_body(data, more_body=True)

    async def end(self) -> None:
        """End the response; raises like ``write``."""
        await self._send_body(b"", more_body=False)

    async def _send_body(self, data: bytes, *, more_body: bool) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._send({"type": "http.response.body", "body": data, "more_body": more_body})
        except TimeoutError as error:
            raise SlowClient from error
