"""Which peers of a kind exist, routers or gateways: host:port entries, where a host name stands for every address
that it resolves to.

A headless Service of Kubernetes is such a name.  A name that cannot be resolved keeps its last addresses: an outage
of the name service must not take the peers away.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

_log = logging.getLogger(__name__)
RESOLVE_TIMEOUT_S = 2.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> IP addresses. Raises ``OSError``."""


class InvalidAddress(ValueError):
    """An entry is not host:port."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port; the host of an IPv6 address comes without its brackets.

    Raises:
        InvalidAddress: it is something else.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidAddress(f"{text!r} is not host:port")
    return host, int(port)


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver. Of a host with both kinds of addresses the IPv4 ones, for they name one process each.

    Raises:
        OSError: the name is not known, or there is no answer.
    """
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = min(entry[0] for entry in found)  # AF_INET is below AF_INET6
    return sorted({str(entry[4][0]) for entry in found if entry[0] == family})


class PeerAddresses:
    """Belongs to the event loop.

    Args:
        entries: host:port each.
        resolve: looks names up.
    """

    def __init__(self, entries: Sequence[str], resolve: Resolve = resolve_by_system) -> None:
        self._entries = tuple(split_address(entry) for entry in entries)
        self._resolve = resolve
        self._known: dict[tuple[str, int], Sequence[str]] = {}
        self._problems: dict[str, str] = {}

    @property
    def are_fixed(self) -> bool:
        """No entry is a name, so that there is nothing to look up again."""
        return all(_is_ip(host) for host, _ in self._entries)

    async def now(self) -> frozenset[str]:
        """The addresses of all peers as host:port."""
        return frozenset([address for host, port in self._entries for address in await self._addresses(host, port)])

    async def _addresses(self, host: str, port: int) -> list[str]:
        if _is_ip(host):
            return [_join(host, port)]
        try:
            self._known[host, port] = await self._resolve(host, port)
            self._problems.pop(host, None)
        except OSError as error:  # TimeoutError is one
            problem = str(error) or "no answer"
            if self._problems.get(host) != problem:
                _log.warning("the name %s cannot be resolved (%s); the last addresses stay", host, problem)
            self._problems[host] = problem
        return [_join(ip, port) for ip in self._known.get((host, port), ())]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
