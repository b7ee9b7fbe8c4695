#!/usr/bin/env python3
"""A backend that speaks OpenAI's completions and computes nothing, for what stands before it to be measured.

    python -m scripts.bench.mock_openai --port 8100 --step-ms 25

Every step all open streams get an event, as engines answer a batch; it has the form of a gateway's event for a token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import ClassVar

TEXTS = {"GET /v1/models": {"object": "list", "data": [{"id": "base", "object": "model", "max_model_len": 8192}]}}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef01234567","object":"text_completion","created":1795564800,"model":"base",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class MockBackend(asyncio.Protocol):
    """One connection."""

    open_streams: ClassVar[dict[MockBackend, int]] = {}
    """And events that each of them still gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._data = transport, b""

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self.open_streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        num_bytes = int(found[1]) if found else 0
        if not end or len(rest) < num_bytes:
            return
        self._data = rest[num_bytes:]
        if head.startswith(b"POST /v1/completions "):
            self._transport.write(_HEAD)
            self.open_streams[self] = json.loads(rest[:num_bytes])["max_tokens"]
        elif head.startswith(b"GET "):
            self._answer(200, TEXTS.get(head.decode().rsplit(" ", 1)[0].partition(" HTTP")[0], {"status": "ok"}))
        else:
            self._answer(404, {"error": "not here"})

    def step(self) -> None:
        """Send an event, and the end after the last one."""
        self.open_streams[self] -= 1
        is_last = self.open_streams[self] == 0
        self._transport.write(_chunk(_EVENT) + (_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n" if is_last else b""))
        if is_last:
            del self.open_streams[self]

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


async def serve(port: int, step_s: float) -> None:
    """Answer until the process ends."""
    loop = asyncio.get_running_loop()
    await loop.create_server(MockBackend, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    due_s = loop.time()
    while True:
        due_s = max(due_s + step_s, loop.time())
        await asyncio.sleep(due_s - loop.time())
        for stream in list(MockBackend.open_streams):
            stream.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=25.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.step_ms / 1000))
