"""Server-sent events of an external endpoint -> JSON objects; bounded, and strict about what it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

MAX_EVENT_BYTES = 1024 * 1024


class BadStream(Exception):
    """The answer is no event stream of an OpenAI-compatible endpoint; the message never holds any of it."""


async def read_events(parts: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The events before ``[DONE]``.

    Args:
        parts: of the body.

    Raises:
        BadStream: something else comes, or the stream ends without ``[DONE]``.
    """
    held = b""
    async for part in parts:
        held += part
        *lines, held = held.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # comments that keep the connection, blank lines, other fields
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield _parse(data)
        if len(held) > MAX_EVENT_BYTES:
            raise BadStream("an event is too large")
    raise BadStream("the stream ends without its end mark")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise BadStream("an event is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise BadStream("an event is an error, or no object")
    return event
