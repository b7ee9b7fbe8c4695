"""Free TCP ports of this machine."""

from __future__ import annotations

import socket

from stratos.common.errors import DependencyDown

NUM_TRIED = 100


def is_free(host: str, port: int) -> bool:
    """No process listens on ``host:port`` (a port in TIME_WAIT counts as free, as it does for the server).

    The probe is bound for a moment and never listens, so a server that takes the port right now is not disturbed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def first_free_port(host: str, port: int) -> int:
    """The first free port at or after ``port``.

    Raises:
        DependencyDown: a long row of ports is busy.
    """
    last = min(port + NUM_TRIED, 65536)
    for candidate in range(port, last):
        if is_free(host, candidate):
            return candidate
    raise DependencyDown(f"ports {port} to {last - 1} of {host} cannot be used; choose another one with --port")


def any_free_port(host: str = "127.0.0.1") -> int:
    """A port that the kernel calls free now; it may be taken before the caller binds it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
