"""A list as a JSON object, written while its rows are made: memory and turns of the loop are those of a part of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stratos_gateway.http.body import until_disconnect
from stratos_gateway.http.sse import patient_send

PART_BYTES = 32 * 1024
PART_ROWS = 64
Rows = AsyncIterator[Mapping[str, Any]]


async def encoded(rows: Rows) -> AsyncIterator[bytes]:
    """``{"data": [...]}`` in parts, between which the loop has a turn."""
    part, num_rows, separator = bytearray(b'{"data":['), 0, b""
    async for row in rows:
        part += separator + orjson.dumps(row)
        num_rows, separator = num_rows + 1, b","
        if len(part) >= PART_BYTES or num_rows >= PART_ROWS:
            yield bytes(part)
            part, num_rows = bytearray(), 0
            await asyncio.sleep(0)
    yield bytes(part + b"]}")


class RowStream(Response):
    """The answer.

    Args:
        rows: of the list; an error of the first part has a status of its own, a later one ends the connection.
        write_timeout_s: how long a client that does not read is waited for.
    """

    media_type = "application/json"

    def __init__(self, rows: Rows, write_timeout_s: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._rows = rows
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it; raises ``SlowClient`` and ``ClientDisconnect``."""
        parts = encoded(self._rows)
        first, patient = await anext(parts), patient_send(send, self._write_timeout_s)
        await until_disconnect(receive, self._write(first, parts, patient))

    async def _write(self, part: bytes, parts: AsyncIterator[bytes], send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
