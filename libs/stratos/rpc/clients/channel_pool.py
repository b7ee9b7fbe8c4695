"""Channels to many peers: one per peer, the least recently used one is closed when there are too many."""

from __future__ import annotations

from collections import OrderedDict

import grpc.aio

from stratos.common.background import BackgroundTasks
from stratos.rpc.clients.dialer import PLAIN, Dialer


class ChannelPool:
    """Belongs to the event loop.

    Args:
        max_channels: above this many the least recently used channel is closed, and with it the calls on it.
        role: of all peers.
        dialer: makes the channels.
    """

    def __init__(self, max_channels: int, role: str, dialer: Dialer = PLAIN) -> None:
        self._role = role
        self._dialer = dialer
        self._max_channels = max_channels
        self._channels: OrderedDict[tuple[str, str], grpc.aio.Channel] = OrderedDict()
        """By address and incarnation, least recently used first."""
        self._closing = BackgroundTasks()

    def __len__(self) -> int:
        return len(self._channels)

    def get(self, address: str, incarnation: str = "") -> grpc.aio.Channel:
        """The channel to a peer. Callers that must not meet an earlier process at ``address`` name its incarnation."""
        key = (address, incarnation)
        if key not in self._channels:
            while len(self._channels) >= self._max_channels:
                self.drop(*next(iter(self._channels)))
            self._channels[key] = self._dialer.channel(address, self._role)
        self._channels.move_to_end(key)
        return self._channels[key]

    def drop(self, address: str, incarnation: str = "") -> None:
        """Close the channel to a peer, if there is one; the next ``get`` connects again."""
        if (known := self._channels.pop((address, incarnation), None)) is not None:
            self._closing.spawn(known.close(), name=f"close channel to {address}")

    async def close(self) -> None:
        for key in list(self._channels):
            self.drop(*key)
        await self._closing.close()
