"""TCP sockets of other processes of this user: which there are, and a handle of each.

``pidfd_getfd`` gives a second descriptor of a socket, under the rules of a debugger: the same user, and no
``kernel.yama.ptrace_scope`` above 0 (or root).  What is done to it is done to the socket itself.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.chaos.faults.contract import NoEffect

ESTABLISHED, LISTEN = "01", "0A"
_PIDFD_GETFD = 438
_SO_ATTACH_FILTER = 26
_LIBC = ctypes.CDLL(None, use_errno=True)
_AF_UNSPEC = bytes(16)
_TCP_INFO_BYTES = struct.Struct("=128xQ")
"""``tcpi_bytes_received``."""
_MAPPED = "0000000000000000FFFF0000"
"""Begins an IPv4 address in the table of IPv6 ones."""
_INODE = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A line of the kernel's table."""

    inode: int
    local: str
    remote: str
    """Addresses as the table writes them, IPv4 ones without their prefix."""
    state: str

    @property
    def local_port(self) -> int:
        """Port of this end."""
        return int(self.local.rpartition(":")[2], 16)

    @property
    def remote_port(self) -> int:
        """Port of the other end."""
        return int(self.remote.rpartition(":")[2], 16)


def tcp_sockets() -> dict[int, TcpSocket]:
    """All TCP sockets of this machine (of its network namespace) by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if inode := int(words[9]):
                    local, remote = (word.removeprefix(_MAPPED) for word in words[1:3])
                    found[inode] = TcpSocket(inode, local, remote, words[3])
    return found


def descriptors(pid: int) -> dict[int, int]:
    """Sockets of a process: inode -> file descriptor. Empty for one that has ended, or is another user's."""
    found = {}
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if match := _INODE.fullmatch(str(Path(entry.path).readlink())):
                    found[int(match[1])] = int(entry.name)
    return found


def owners(inodes: set[int], besides: int = 0) -> dict[int, tuple[int, int]]:
    """Process and descriptor of each socket that a process of this user, ``besides`` one, has."""
    found: dict[int, tuple[int, int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != besides and len(found) < len(inodes):
            fds = descriptors(int(entry.name))
            found |= {inode: (int(entry.name), fds[inode]) for inode in inodes & fds.keys()}
    return found


def take(pid: int, fd: int, inode: int) -> socket.socket | None:
    """Second descriptor of a socket; ``None`` where it is closed by now.

    Raises:
        NoEffect: the kernel does not allow it.
    """
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            taken = _LIBC.syscall(_PIDFD_GETFD, pidfd, fd, 0)
            number = ctypes.get_errno()
        finally:
            os.close(pidfd)
        if taken >= 0 and os.fstat(taken).st_ino == inode:
            return socket.socket(fileno=taken)
        if taken >= 0:
            os.close(taken)
        elif number in _FORBIDDEN:
            raise NoEffect(f"{_FORBIDDEN[number]}, so sockets of process {pid} cannot be reached")
    return None


_FORBIDDEN = {
    1: "this user may not debug that process (kernel.yama.ptrace_scope must be 0, or this be root)",
    38: "this kernel has no pidfd_getfd (Linux 5.6)",
}


def cut(sock: socket.socket) -> None:
    """End a connection at once: its peer gets a reset."""
    if _LIBC.connect(sock.fileno(), _AF_UNSPEC, len(_AF_UNSPEC)):
        raise OSError(ctypes.get_errno(), "a connection could not be cut")


def drop_all(sock: socket.socket) -> None:
    """From now on no packet reaches this socket; without root, by a filter that lets none pass."""
    nothing = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(nothing)))


def bytes_received(sock: socket.socket) -> int:
    """Bytes that ever arrived at a socket."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES.size)
    return int(_TCP_INFO_BYTES.unpack(info)[0]) if len(info) == _TCP_INFO_BYTES.size else 0
