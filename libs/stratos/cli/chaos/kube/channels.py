"""Programs and connections in pods, over WebSockets of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from stratos.cli.chaos.kube.api import KubeApi
from stratos.common.errors import DependencyDown, StratosError

STDIN, STDOUT, STDERR, STATUS = range(4)
"""Channels of a program."""
DATA, ERROR = range(2)
"""Channels of a connection; the first message of each has the number of the port."""
CHUNK_BYTES = 32 << 10
_READ_PROGRAM = "import sys; exec(compile(sys.stdin.buffer.read({size}), 'on_node', 'exec'))"


async def run_python(api: KubeApi, pod: str, program: str, task: Any) -> AsyncIterator[Any]:
    """The lines of a program in a pod, which prints JSON; it finds its task as JSON in its first argument.

    Raises:
        DependencyDown: it ended with an error, or its connection did.
        StratosError: as ``KubeApi.call``.
    """
    source, complaints, rest = program.encode(), bytearray(), bytearray()
    argv = ["python", "-c", _READ_PROGRAM.format(size=len(source)), json.dumps(task)]
    params = [("command", word) for word in argv] + [(name, "true") for name in ("stdin", "stdout", "stderr")]
    async with api.socket(f"{pod}/exec", params) as socket:
        for at in range(0, len(source), CHUNK_BYTES):
            await socket.send_bytes(bytes([STDIN]) + source[at : at + CHUNK_BYTES])
        async for message in socket:
            channel, content = _parts(message)
            if channel == STDOUT:
                rest += content
                *lines, last = rest.split(b"\n")
                rest = bytearray(last)
                for line in lines:
                    yield json.loads(line)
            elif channel == STDERR:
                complaints += content
            elif channel == STATUS:
                status = json.loads(content)
                if status.get("status") != "Success":
                    said = complaints.decode(errors="replace").strip()[-400:]
                    raise DependencyDown(f"a program in {pod} failed: {said or status.get('message')}")
                return
    raise DependencyDown(f"the connection to a program in {pod} ended before it did")


@asynccontextmanager
async def forwarded(api: KubeApi, pick: Callable[[], Awaitable[tuple[str, int]]]) -> AsyncIterator[str]:
    """HOST:PORT of this machine whose connections go to pods.

    A connection is lost where its pod ends, and closed at once where none can be had, as at a load balancer.

    Args:
        api: through which they go.
        pick: path and port of the pod that the next one goes to.
    """
    tasks = set[asyncio.Task[None]]()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.create_task(_serve(api, pick, reader, writer)))
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    api: KubeApi,
    pick: Callable[[], Awaitable[tuple[str, int]]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One connection; its client sees no more of a failure than that it ends."""
    try:
        with suppress(StratosError, OSError):
            await _connect(api, *await pick(), reader, writer)
    finally:
        writer.close()


async def _connect(
    api: KubeApi, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async with api.socket(f"{pod}/portforward", [("ports", str(port))]) as socket:
        ends = [asyncio.create_task(_send(reader, socket)), asyncio.create_task(_receive(socket, writer))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: Any) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await socket.send_bytes(bytes([DATA]) + data)


async def _receive(socket: Any, writer: asyncio.StreamWriter) -> None:
    begun = set[int]()
    async for message in socket:
        channel, content = _parts(message)
        if channel not in begun:
            begun.add(channel)
        elif channel == ERROR:
            return
        elif content:
            writer.write(content)
            with suppress(ConnectionError):
                await writer.drain()


def _parts(message: Any) -> tuple[int, bytes]:
    """Channel and content; what is no data belongs to no channel."""
    data = message.data if isinstance(message.data, bytes) else str(message.data or "").encode()
    return (data[0], data[1:]) if data else (-1, b"")
