"""Who may free exported memory, and when: the driver leaves undefined what a mapping reads once its exporter has freed.

Both processes hold a Unix socket of a private directory, and each end sees when the other one closes it or dies.

    sender                                receiver
    connect, hello: secret of the pair ─▶ same user? which pair?
                                       ◀─ grant: size, device, handle (bytes of known lengths, checked one by one)
    map the memory; write frames          read frames
                                       ◀─ no more is granted (half of the socket is closed): the pair has ended
    finish the copy under way, unmap
    close                              ─▶ free the memory

A sender that dies closes as well, and the driver unmaps for it.  A stopped one keeps the memory from being freed until
it goes on or dies: it may be within a copy.  Nothing that comes in is executed, unpickled or used as a path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from stratos.kv_transfer.device.memory import HANDLE_BYTES

SECRET_BYTES = 16
_HELLO = struct.Struct(f"!12s{SECRET_BYTES}s")
_GRANT = struct.Struct(f"!12sQ64s{HANDLE_BYTES}s")
_MAGIC = b"stratos-ipc1"
_CREDENTIALS = struct.Struct("3i")
_DEVICE = re.compile(r"[A-Za-z0-9-]{1,64}")
_ADDRESS = re.compile(rf"(kv-[0-9a-f]{{16}}\.sock)/([0-9a-f]{{{2 * SECRET_BYTES}}})")
SOCKET_NAME = re.compile(r"kv-[0-9a-f]{16}\.(?:sock|new)")
"""``new``: bound, and renamed to ``sock`` once it listens."""
MAX_STARTS = 16
"""Each other process that starts at the same moment can remove a socket once before it has its name."""
HELLO_BYTES, GRANT_BYTES = _HELLO.size, _GRANT.size


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """Memory that the receiver lends."""

    num_bytes: int
    device: str
    handle: bytes


def parse_address(address: str) -> tuple[str, bytes]:
    """Name of the socket and secret of the pair. Raises ``ValueError``: a peer wrote it."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(f"{address!r} is not the address of exported memory")
    return found[1], bytes.fromhex(found[2])


def encode_hello(secret: bytes) -> bytes:
    """First message of the sender."""
    return _HELLO.pack(_MAGIC, secret)


def decode_hello(data: bytes) -> bytes:
    """The secret. Raises ``ConnectionError``."""
    if len(data) != HELLO_BYTES or not data.startswith(_MAGIC):
        raise ConnectionError("the peer speaks another protocol")
    return data[len(_MAGIC) :]


def encode_grant(grant: DeviceGrant) -> bytes:
    """Answer of the receiver."""
    assert len(grant.handle) == HANDLE_BYTES, "a driver has handles of one size"
    return _GRANT.pack(_MAGIC, grant.num_bytes, grant.device.encode(), grant.handle)


def decode_grant(data: bytes) -> DeviceGrant:
    """The memory that was lent. Raises ``ConnectionError``: it is malformed, or cut short."""
    if len(data) != GRANT_BYTES:
        raise ConnectionError("the pair is gone, or has a sender already")
    magic, num_bytes, name, handle = _GRANT.unpack(data)
    device = name.rstrip(b"\0").decode("ascii", errors="replace")
    if magic != _MAGIC or not _DEVICE.fullmatch(device):
        raise ConnectionError("the peer speaks another protocol")
    return DeviceGrant(num_bytes, device, handle)


def check_user(connection: socket.socket) -> None:
    """Raise ``ConnectionError`` unless the peer's process is of this user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if (user := _CREDENTIALS.unpack(raw)[1]) != os.geteuid():
        raise ConnectionError(f"the peer's process is of user {user}")


def borrow(path: Path, secret: bytes, timeout_s: float) -> tuple[socket.socket, DeviceGrant]:
    """Ask for the memory of a pair; blocks. The socket is the lease: close it when the memory is unmapped.

    Raises:
        OSError: no process listens there, it is another user's, or it knows no such pair.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        check_user(connection)
        connection.sendall(encode_hello(secret))
        data = b""
        while len(data) < GRANT_BYTES and (more := connection.recv(GRANT_BYTES - len(data))):
            data += more
        grant = decode_grant(data)
    except BaseException:
        connection.close()
        raise
    connection.setblocking(False)
    return connection, grant


def is_lent(lease: socket.socket) -> bool:
    """The receiver has neither ended the pair of a borrowed lease nor died."""
    try:
        return bool(lease.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def remove_leftovers(directory: Path) -> int:
    """Unlink sockets at which no process listens; returns how many.

    One that a living process has bound and does not listen at yet looks like a dead one's: ``listen_at`` binds again.
    """
    removed = 0
    for path in directory.iterdir():
        if SOCKET_NAME.fullmatch(path.name) and not _is_listening(path):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def listen_at(path: Path) -> socket.socket:
    """Listen, and only then take the name: a bound socket that does not listen is removed as a dead process'.

    Raises:
        OSError: the directory is gone, full or not writable, or too many other processes start at the same time.
    """
    for _ in range(MAX_STARTS):
        with contextlib.suppress(FileNotFoundError):  # another process' start has removed it
            return _listen_once(path)
        if not path.parent.is_dir():
            break
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))


def _listen_once(path: Path) -> socket.socket:
    listener, unnamed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path.with_suffix(".new")
    try:
        listener.bind(str(unnamed))
        listener.listen()
        listener.setblocking(False)
        unnamed.rename(path)
    except BaseException:
        listener.close()
        unnamed.unlink(missing_ok=True)
        raise
    return listener


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # full, or not ours to know
    return True
