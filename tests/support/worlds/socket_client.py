"""A client of WebSockets that can do what clients must not: frames of any form, halves of them, silence."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from types import TracebackType
from typing import Any, Self

from stratos_gateway.sockets.frames import accept_key
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def client_frame(payload: bytes, kind: int = TEXT, *, is_last: bool = True, is_masked: bool = True) -> bytes:
    """One frame of a client."""
    length, mask = len(payload), 0x80 if is_masked else 0
    head = bytes([(0x80 if is_last else 0) | kind])
    if length < 126:
        head += bytes([mask | length])
    elif length < 1 << 16:
        head += struct.pack("!BH", mask | 126, length)
    else:
        head += struct.pack("!BQ", mask | 127, length)
    if not is_masked:
        return head + payload
    key = b"\x9e\x01\x7f\xc3"  # any key masks
    return head + key + bytes(byte ^ key[place % 4] for place, byte in enumerate(payload))


class SocketClient:
    """One connection; ``status`` is that of its handshake.

    Args:
        world: whose gateway is asked.
        path: of the handshake.
        headers: of the handshake; a value of ``None`` leaves one of ours out.
    """

    def __init__(self, world: World, path: str = "/v1/responses", **headers: str | None) -> None:
        self._address = world.service.http_address
        self._path = path
        self._key = base64.b64encode(os.urandom(16)).decode()
        own = {
            "host": "gateway",
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": self._key,
            "authorization": f"Bearer {KEY}",
        }
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._head = {name: value for name, value in {**own, **given}.items() if value is not None}
        self.status = 0
        self.headers: dict[str, str] = {}
        self.refusal: Any = None
        self.num_pings = 0
        self.closed: tuple[int, str] | None = None

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        lines = [f"GET {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in self._head.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode())
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for line in rest if line for name, _, value in [line.partition(": ")]}
        if self.status == 101:
            assert self.headers["sec-websocket-accept"] == accept_key(self._key.encode()).decode()
        else:
            self.refusal = json.loads(await self.reader.readexactly(int(self.headers["content-length"])))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    def create(self, text: str = "hi", **fields: Any) -> None:
        """Ask for a response."""
        self.say({"type": "response.create", "model": "base", "input": text, **fields})

    def say(self, message: Any) -> None:
        """Send a message, as JSON unless it is a text."""
        text = message if isinstance(message, str) else json.dumps(message)
        self.writer.write(client_frame(text.encode()))

    async def event(self) -> dict[str, Any] | None:
        """The next event; ``None`` once the connection is closed, of which ``closed`` tells."""
        while True:
            try:
                kind, payload = await self._frame()
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            if kind == TEXT:
                event: dict[str, Any] = json.loads(payload)
                return event
            if kind == PING:
                self.num_pings += 1
                self.writer.write(client_frame(payload, PONG))
            elif kind == CLOSE:
                (code,) = struct.unpack("!H", payload[:2])
                self.closed = code, payload[2:].decode()
                self.writer.write(client_frame(payload, CLOSE))
                return None

    async def events(self) -> list[dict[str, Any]]:
        """Events up to the last one of a response, or to a refusal."""
        found = list[dict[str, Any]]()
        while (event := await self.event()) is not None:
            found.append(event)
            if event["type"] in TERMINAL or (event["type"] == "error" and "status" in event):
                break
        return found

    async def answer(self, text: str = "hi", **fields: Any) -> dict[str, Any]:
        """A response that ended well, or the error event."""
        self.create(text, **fields)
        last = (await self.events())[-1]
        response: dict[str, Any] = last.get("response", last)
        return response

    async def _frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        assert not second & 0x80, "servers do not mask"
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(length)
