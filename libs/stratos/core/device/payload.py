"""Bytes of KV that are handed from an engine to a transport or back, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DevicePayload:
    """A contiguous run in a device's memory; complete, so no work on the device has to be waited for."""

    address: int
    """Address as kernels of this process see it."""
    nbytes: int
    read: Callable[[], bytes]
    """Copies it to host memory."""
    owner: object
    """Keeps the memory while this lives."""

    def to_host(self) -> memoryview:
        """A private copy, read-only."""
        return memoryview(self.read())


Payload = memoryview | DevicePayload


def host_view(payload: Payload) -> memoryview:
    """The bytes in host memory: a copy, where they lie in a device's."""
    return payload.to_host() if isinstance(payload, DevicePayload) else payload
