"""TCP ports of this machine: a free one, and the ports that all gateways serve, of the API and of its administration.

The supervisor listens on the public port and hands its socket to every gateway; they take connections from one queue.
So a gateway that was killed, hangs or drains takes no new connection, and what it leaves in the queue goes to another
one, or waits for its restart where it is the only one.  With a socket for each (``SO_REUSEPORT``) the kernel would
deal connections out by their addresses, also to a gateway that hangs.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from stratos.common.errors import DependencyDown
from stratos.rpc.binding import join_address

NUM_TRIED = 100
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class PublicListener:
    """A listening socket that processes inherit."""

    _socket: socket.socket
    host: str

    @property
    def port(self) -> int:
        """Port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """host:port."""
        return join_address(self.host, self.port)

    @property
    def fd(self) -> int:
        """File descriptor, the same in the processes that inherit it."""
        return self._socket.fileno()

    def close(self) -> None:
        """This process' share; the port is free once every process has closed its own."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class GatewayListeners:
    """Sockets that all gateways serve."""

    public: PublicListener
    admin: PublicListener

    @property
    def fds(self) -> tuple[int, int]:
        """File descriptors of the public and the admin socket."""
        return self.public.fd, self.admin.fd


def listen_from(host: str, port: int, flag: str = "--port") -> PublicListener:
    """Listen on the first free port at or after ``port``; ``flag`` sets it, for messages.

    Raises:
        DependencyDown: a long row of ports is busy, or the host is not one of this machine.
    """
    last = min(port + NUM_TRIED, 65536)
    for candidate in range(port, last):
        try:
            return PublicListener(_listen(host, candidate), host)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    raise DependencyDown(f"ports {port} to {last - 1} of {host} cannot be used; choose another one with {flag}")


def any_free_port(host: str = "127.0.0.1") -> int:
    """A port that the kernel calls free now; it may be taken before the caller binds it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _listen(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
