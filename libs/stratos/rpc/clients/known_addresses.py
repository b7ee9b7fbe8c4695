"""Which addresses of a name are kept, over the answers of the name service.  Pure: answers and time are passed in.

an answer with addresses     these; one that is missing stays while it is connected (it drains, or is not ready)
an answer without any        all stay, for it may be an outage; one that was neither named nor connected for
                             ``FORGET_AFTER_S`` goes
no answer                    all stay
"""

from __future__ import annotations

from collections.abc import Callable, Collection

FORGET_AFTER_S = 60.0
"""Longer than a restart of the name service, shorter than the time after which an address is given again."""
IsConnected = Callable[[str], bool]
"""host:port -> the process there answers on an open connection."""


class KnownAddresses:
    """The addresses that one name stands for."""

    def __init__(self) -> None:
        self.now: frozenset[str] = frozenset()
        self._gone_since_s: dict[str, float] = {}
        """Addresses that empty answers lack and that are not connected."""

    def on_found(self, addresses: Collection[str], is_connected: IsConnected) -> None:
        """The name service named these."""
        self._gone_since_s.clear()
        self.now = frozenset(addresses).union(filter(is_connected, self.now))

    def on_nothing(self, is_connected: IsConnected, now_s: float) -> None:
        """The name service answered that there are none."""
        gone = [address for address in self.now if not is_connected(address)]
        self._gone_since_s = {address: self._gone_since_s.get(address, now_s) for address in gone}
        self.now -= {address for address, since in self._gone_since_s.items() if now_s - since >= FORGET_AFTER_S}
