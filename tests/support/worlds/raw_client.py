"""A client that writes bytes as it likes: half a head, a body in drops, more than was asked for."""

from __future__ import annotations

import asyncio
import json

from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World


def head(num_bytes: int, key: str = KEY, path: str = "/v1/completions") -> bytes:
    """The head of a request with a body of this length."""
    lines = (f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", f"content-length: {num_bytes}")
    return "\r\n".join((*lines, "", "")).encode()


class Client:
    """A raw connection."""

    def __init__(self, world: World) -> None:
        self._address = world.service.http_address.split(":")

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self._address[0], int(self._address[1]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def pour(self, piece: bytes, max_bytes: int) -> int:
        """Send until the gateway hangs up; returns how much went out."""
        sent = 0
        try:
            while sent < max_bytes and not self.reader.at_eof():
                self.writer.write(piece)
                await self.writer.drain()
                await asyncio.sleep(0)
                sent += len(piece)
        except ConnectionError:
            pass
        return sent

    async def answer(self) -> tuple[int, dict[str, str], dict[str, object]]:
        """The next answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(body)

    async def is_ended(self) -> bool:
        """The gateway hangs up, and says no more."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True
