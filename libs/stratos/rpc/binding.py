"""Addresses a process listens on, and a clear message when it cannot."""

from __future__ import annotations

import errno
import socket


class StartError(Exception):
    """The process cannot start; the message says why and what to do, and is all that is printed."""


def split_address(address: str) -> tuple[str, int]:
    """Split host:port; IPv6 hosts may stand in brackets.

    Raises:
        StartError: not host:port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{address!r} is not host:port with a port in [0, 65535]")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """host:port, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def explain_bind_failure(address: str, setting: str, error: OSError | None = None) -> StartError:
    """Why ``address`` cannot be listened on, found by trying once more when the reason is not known.

    Args:
        address: host:port.
        setting: name of the setting that holds it, for the advice.
        error: what the attempt raised, if it said why.
    """
    host, port = split_address(address)
    reason = error or _bind_error(host, port)
    if isinstance(reason, socket.gaierror):
        return StartError(f"cannot listen on {address}: the host {host!r} is not known; correct {setting}")
    if reason is not None and reason.errno == errno.EADDRINUSE:
        advice = f"stop the process that uses it, or set {setting} to another port (0 picks a free one)"
        return StartError(f"cannot listen on {address}: port {port} is in use; {advice}")
    if reason is not None and reason.errno == errno.EADDRNOTAVAIL:
        return StartError(f"cannot listen on {address}: this machine has no address {host}; correct {setting}")
    if reason is not None and reason.errno == errno.EACCES:
        return StartError(f"cannot listen on {address}: port {port} needs privileges; set {setting} to one above 1023")
    return StartError(f"cannot listen on {address} ({reason or 'another process took it first'}); correct {setting}")


def check_bindable(address: str, setting: str) -> None:
    """Raise ``StartError`` if ``address`` cannot be listened on now; arguments as in ``explain_bind_failure``."""
    if error := _bind_error(*split_address(address)):
        raise explain_bind_failure(address, setting, error)


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None
