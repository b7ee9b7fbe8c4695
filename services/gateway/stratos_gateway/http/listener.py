"""The listening socket of the OpenAI API: one of this process, or one that the process which started it shares out.

Gateways that inherit the same socket take connections from one queue, so one that hangs, drains or is killed takes no
more of them, and those in the queue go to the others.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from stratos.rpc.binding import StartError, explain_bind_failure, join_address, split_address

BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens."""

    socket: socket.socket
    address: str
    """host:port."""
    is_shared: bool
    """Other processes listen on it as well."""


def open_listener(listen: str, setting: str) -> Listener:
    """Bind host:port; ``setting`` is the name of the setting that holds it, for messages.

    Raises:
        StartError: the address cannot be bound.
    """
    host, port = split_address(listen)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise explain_bind_failure(listen, setting, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise explain_bind_failure(listen, setting, error) from None
    listener.setblocking(False)
    return Listener(listener, join_address(host, listener.getsockname()[1]), is_shared=False)


def inherit_listener(fd: int, setting: str) -> Listener:
    """Take over a listening socket; ``setting`` is the name of the setting that holds its file descriptor.

    Raises:
        StartError: there is no such descriptor, or it is no listening TCP socket.
    """
    try:
        listener = socket.socket(fileno=fd)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        host, port = listener.getsockname()[:2]
    except (OSError, ValueError) as error:
        raise StartError(f"{setting}={fd} is no socket that this process inherited ({error})") from None
    if not is_listening:
        listener.close()
        raise StartError(f"{setting}={fd} is a socket that does not listen")
    listener.set_inheritable(False)  # processes of this one must not keep the port
    listener.setblocking(False)
    return Listener(listener, join_address(host, port), is_shared=True)
