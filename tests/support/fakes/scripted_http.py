"""An HTTP server on a real socket that answers as its script says: slow, wrong, in pieces, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Sends pieces of one answer."""

    writer: asyncio.StreamWriter

    async def send(self, body: object = None, status: int = 200, *, raw: bytes | None = None) -> None:
        """A whole answer, JSON unless it is given as bytes."""
        data = orjson.dumps(body) if raw is None else raw
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
        await self.write(head.encode() + b"connection: close\r\n\r\n" + data)

    async def begin_events(self) -> None:
        """The head of an event stream, which ends with the connection."""
        await self.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")

    async def event(self, event: object) -> None:
        """One event; text goes as it is."""
        await self.write(b"data: " + (event.encode() if isinstance(event, str) else orjson.dumps(event)) + b"\n\n")

    async def write(self, data: bytes) -> None:
        """Bytes of the answer."""
        self.writer.write(data)
        await self.writer.drain()


Script = Callable[[Asked, Reply], Awaitable[None]]


@dataclass
class ScriptedHttp:
    """What it was asked, and what it answers next."""

    script: Script
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    num_left: int = 0
    """Requests whose client left before their script had ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = orjson.loads(await reader.readexactly(int(headers.get("content-length", 0))))
            asked = Asked(head[0].split(" ")[1], headers, body)
            self.asked.append(asked)
            await self._run(asked, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.num_left += 1
        finally:
            writer.close()

    async def _run(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        work = asyncio.ensure_future(self.script(asked, Reply(writer)))
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.num_left += 1
                return
            await work
        finally:
            for task in (work, left):
                task.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.gather(work, left, return_exceptions=True)


@asynccontextmanager
async def scripted_http(script: Script) -> AsyncIterator[ScriptedHttp]:
    """Serve on loopback until the block ends."""
    found = ScriptedHttp(script)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()


@contextmanager
def scripted_http_in_thread(script: Script) -> Iterator[ScriptedHttp]:
    """The same in a thread of its own, for fixtures that outlive the event loop of one test."""
    started: list[ScriptedHttp] = []
    is_up, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with scripted_http(script) as found:
            started.append(found)
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert is_up.wait(10), "the scripted server did not start"
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
