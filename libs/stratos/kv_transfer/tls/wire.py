"""Bytes on a connection, and the handshakes at both ends.

    sender                          receiver
    TLS 1.3, certificates of workers on both sides
    hello: secret of the offer ──▶  which pair it is
                               ◀──  welcome, or the connection ends
    frame: tag, size, payload  ──▶  into the slot of the posted frame of this tag
    ...

After the welcome bytes go one way only, so that no end ever reads and writes one TLS connection in two threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from stratos.common.tls.contexts import peer_identity
from stratos.common.tls.identity import WORKER_ROLES
from stratos.kv_transfer.transfer import FrameHeader

SECRET_BYTES = 16
HELLO_HEAD = b"stratos-kv-1:"
HELLO_BYTES = len(HELLO_HEAD) + SECRET_BYTES
WELCOME = b"\x01"
FRAME_HEAD = struct.Struct("!16sQ")
"""Tag of the frame, bytes of its payload."""


def tag_of(header: FrameHeader) -> bytes:
    """Names a frame of a pair."""
    return hashlib.sha256(f"{header.leg}/{header.seq}".encode()).digest()[:16]


def check_peer(connection: ssl.SSLSocket, domain: str) -> None:
    """Raise ``ConnectionError`` unless the peer's certificate is that of a worker of this platform."""
    identity = peer_identity(connection)
    if identity is None or identity.domain != domain or identity.role not in WORKER_ROLES:
        found = "no role" if identity is None else identity.uri
        raise ConnectionError(f"the peer must be a worker of the platform {domain!r}; its certificate names {found}")


def dial(host: str, port: int, secret: bytes, context: ssl.SSLContext, domain: str, timeout_s: float) -> ssl.SSLSocket:
    """A connection that belongs to the pair of a secret; blocks.

    Raises:
        OSError: nothing listens there, the peer is no worker, or it knows no such pair.
    """
    raw = socket.create_connection((host, port), timeout_s)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = context.wrap_socket(raw)
    except BaseException:
        raw.close()
        raise
    try:
        check_peer(connection, domain)
        connection.sendall(HELLO_HEAD + secret)
        # In TLS 1.3 this end is done before the other one has looked at our certificate: only its answer shows.
        if connection.recv(len(WELCOME)) != WELCOME:
            raise ConnectionError("the pair is gone, or the receiver refused our certificate")
    except BaseException:
        connection.close()
        raise
    return connection


async def accept(raw: socket.socket, context: ssl.SSLContext, domain: str) -> tuple[ssl.SSLSocket, bytes]:
    """The handshake at the listening end, up to the hello; never blocks. Returns the connection and the secret.

    Raises:
        OSError: the peer is no worker of this platform, or sends something else.
    """
    raw.setblocking(False)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
    try:
        await _eventually(connection, connection.do_handshake)
        check_peer(connection, domain)
        hello = b""
        while len(hello) < HELLO_BYTES:
            more = await _eventually(connection, connection.recv, HELLO_BYTES - len(hello))
            if not more:
                raise ConnectionError("the connection ended before the hello")
            hello += more
        if not hello.startswith(HELLO_HEAD):
            raise ConnectionError("the peer speaks another protocol")
    except BaseException:
        connection.close()
        raise
    return connection, hello.removeprefix(HELLO_HEAD)


async def welcome(connection: ssl.SSLSocket) -> None:
    """Answer the hello; from here on this end only reads, in a thread that may block."""
    await _eventually(connection, connection.send, WELCOME)
    connection.setblocking(True)


def read_into(connection: ssl.SSLSocket, view: memoryview) -> int:
    """Fill ``view``, blocking; returns how many bytes came before the end, 0 when it was there at once."""
    done = 0
    while done < view.nbytes:
        count = connection.recv_into(view[done:])
        if not count:
            break
        done += count
    return done


def has_ended(connection: socket.socket) -> bool:
    """For an end that only writes: anything to read is the end of the connection."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))


def wake(connection: socket.socket) -> None:
    """End a connection under a thread that reads or writes it; that thread gets an error or the end."""
    try:
        # Not the method of SSLSocket: it would take TLS off first, and the thread would go on with ciphertext.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


async def _eventually(connection: ssl.SSLSocket, call: Callable[..., Any], *args: Any) -> Any:
    """``call`` of a connection that does not block, once it can go through."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return call(*args)
        except ssl.SSLWantReadError:
            await _ready(loop.add_reader, loop.remove_reader, connection.fileno())
        except ssl.SSLWantWriteError:
            await _ready(loop.add_writer, loop.remove_writer, connection.fileno())


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _ready(add: Callable[..., Any], remove: Callable[[int], Any], fd: int) -> None:
    ready = asyncio.get_running_loop().create_future()
    add(fd, _settle, ready)
    try:
        await ready
    finally:
        remove(fd)
