"""A list, or a document of named entries, as a JSON object that is written while its rows are made.

Memory and turns of the loop are those of a part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stratos_gateway.http.body import until_disconnect
from stratos_gateway.http.sse import patient_send

PART_BYTES = 32 * 1024
PART_ROWS = 64
Rows = AsyncIterator[Mapping[str, Any]]


Sections = Mapping[str, Iterable[tuple[str, Mapping[str, Any]]]]
"""Entries by name, of each part of a document."""


async def encoded(rows: Rows) -> AsyncIterator[bytes]:
    """``{"data": [...]}`` in parts, between which the loop has a turn."""
    async for part in _joined(_row_texts(rows)):
        yield part


async def encoded_sections(sections: Sections) -> AsyncIterator[bytes]:
    """``{section: {name: entry, ...}, ...}`` in parts, with a line of its own for each entry, so that readers of any
    memory can take it line by line."""
    async for part in _joined(_section_texts(sections)):
        yield part


async def _row_texts(rows: Rows) -> AsyncIterator[bytes]:
    separator = b'{"data":['
    async for row in rows:
        yield separator + orjson.dumps(row)
        separator = b","
    yield b"]}" if separator == b"," else separator + b"]}"


async def _section_texts(sections: Sections) -> AsyncIterator[bytes]:
    head = b"{"
    for section, entries in sections.items():
        yield head + orjson.dumps(section) + b":{"
        separator = b"\n"
        for name, entry in entries:
            yield separator + orjson.dumps(name) + b":" + orjson.dumps(entry)
            separator = b",\n"
        head = b"\n},"
    yield head.rstrip(b",") + b"}"


async def _joined(texts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    part, num_texts = bytearray(), 0
    async for text in texts:
        part += text
        num_texts += 1
        if len(part) >= PART_BYTES or num_texts >= PART_ROWS:
            yield bytes(part)
            part, num_texts = bytearray(), 0
            await asyncio.sleep(0)
    if part:
        yield bytes(part)


class PartStream(Response):
    """The answer.

    Args:
        parts: of its JSON; an error of the first one has a status of its own, a later one ends the connection.
        write_timeout_s: how long a client that does not read is waited for.
    """

    media_type = "application/json"

    def __init__(self, parts: AsyncIterator[bytes], write_timeout_s: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._parts = parts
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it; raises ``SlowClient`` and ``ClientDisconnect``."""
        parts = self._parts
        first, patient = await anext(parts), patient_send(send, self._write_timeout_s)
        await until_disconnect(scope, receive, self._write(first, parts, patient))

    async def _write(self, part: bytes, parts: AsyncIterator[bytes], send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
