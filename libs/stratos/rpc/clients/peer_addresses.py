"""Which peers of a kind exist, routers, gateways or workers: host:port entries, where a host name stands for every
address that it resolves to.

A headless Service of Kubernetes is such a name.  An outage of the name service takes no peer away (``KnownAddresses``).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence

from stratos.common.clock import Clock
from stratos.rpc.clients.known_addresses import IsConnected, KnownAddresses
from stratos.rpc.clients.name_lookup import NoSuchName, Resolve, SystemResolver

_log = logging.getLogger(__name__)


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


class PeerAddresses:
    """Belongs to the event loop.

    Args:
        entries: host:port each.
        clock: of the outages.
        resolve: looks names up; the system's resolver if absent.
    """

    def __init__(self, entries: Sequence[str], clock: Clock, resolve: Resolve | None = None) -> None:
        self._entries = tuple(split_address(entry) for entry in entries)
        self._clock = clock
        self._resolve = resolve or SystemResolver()
        self._known: dict[tuple[str, int], KnownAddresses] = {}
        self._problems: dict[str, str] = {}

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names for which there was no answer yet, not even that they stand for nothing."""
        return tuple(host for host, port in self._entries if not _is_ip(host) and (host, port) not in self._known)

    async def now(self, is_connected: IsConnected = lambda _: False) -> frozenset[str]:
        """The addresses of all peers as host:port.

        Args:
            is_connected: whether a peer answers; one that does stays when the name service stops naming it.
        """
        found = [await self._addresses(host, port, is_connected) for host, port in self._entries]
        return frozenset().union(*found)

    async def _addresses(self, host: str, port: int, is_connected: IsConnected) -> frozenset[str]:
        if _is_ip(host):
            return frozenset([_join(host, port)])
        key, problem = (host, port), ""
        try:
            found = [_join(ip, port) for ip in await self._resolve(host, port)]
            if not found:
                raise NoSuchName("no addresses")
            self._known.setdefault(key, KnownAddresses()).on_found(found, is_connected)
        except NoSuchName as error:
            problem = str(error)
            self._known.setdefault(key, KnownAddresses()).on_nothing(is_connected, self._clock.now())
        except OSError as error:  # TimeoutError is one
            problem = str(error) or "no answer"
        self._note(host, problem)
        return self._known[key].now if key in self._known else frozenset()

    def _note(self, host: str, problem: str) -> None:
        """Log a problem when it begins or changes, and when it is over."""
        if self._problems.get(host, "") == problem:
            return
        self._problems[host] = problem
        if problem:
            _log.warning("the name %s is not resolved (%s); its last addresses stay", host, problem)
        else:
            _log.info("the name %s is resolved again", host)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
