"""Names to IP addresses, by the system's resolver and so by its files, search domains and servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

LOOKUP_TIMEOUT_S = 2.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> IP addresses. Raises ``NoSuchName``, or ``OSError`` when there is no answer."""
_Key = tuple[str, int]


class NoSuchName(OSError):
    """The name service answered that there is no such name, or none with an address."""


class SystemResolver:
    """Belongs to an event loop.

    Each lookup has a thread of its own, one per name at most: the system's resolver may hang for half a minute, and
    must neither use up the loop's threads nor delay the end of the process.
    """

    def __init__(self) -> None:
        self._open: dict[_Key, asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a name; of a host with both kinds the IPv4 ones, for they name one process each.

        Raises:
            NoSuchName: there is none.
            OSError: no answer within ``LOOKUP_TIMEOUT_S``, or a failure of the name service.
        """
        key = (host, port)
        if key not in self._open:
            self._open[key] = self._start(key)
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            return await asyncio.shield(self._open[key])

    def _start(self, key: _Key) -> asyncio.Future[Sequence[str]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle(found: Sequence[str] | OSError) -> None:
            self._open.pop(key, None)
            if isinstance(found, OSError):
                future.set_exception(found)
                future.exception()  # it may have no reader any more
            else:
                future.set_result(found)

        def look_up() -> None:
            found = _ask_system(*key)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=look_up, name=f"look up {key[0]}", daemon=True).start()
        return future


def _ask_system(host: str, port: int) -> Sequence[str] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        is_answer = error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
        return NoSuchName(error.strerror) if is_answer else error
    except OSError as error:
        return error
    except UnicodeError as error:  # a label that is empty or too long
        return NoSuchName(str(error))
    family = min(entry[0] for entry in found)  # AF_INET is below AF_INET6
    return sorted({str(entry[4][0]) for entry in found if entry[0] == family})
