"""Contract of a device's driver: ``cuda`` has CUDA's, tests substitute files for a device."""

from __future__ import annotations

from typing import Protocol

from stratos.core.device.payload import DevicePayload, Payload

HANDLE_BYTES = 64
"""Length of an exported allocation's handle, as CUDA has them."""


class NoDeviceRoomError(RuntimeError):
    """Out of memory: another time there may be room."""


class ExportedMemory(Protocol):
    """An allocation of this process; given back when the last reference to it is gone."""

    @property
    def handle(self) -> bytes:
        """``HANDLE_BYTES`` that let another process attach."""
        ...

    def span(self, offset: int, num_bytes: int) -> DevicePayload:
        """Bytes where they lie; the span keeps the memory."""
        ...


class AttachedMemory(Protocol):
    """An allocation of another process."""

    def write(self, offset: int, payload: Payload) -> None:
        """Copy host or device memory there; returns when the copy is complete. Raises ``RuntimeError``."""
        ...

    def detach(self) -> None:
        """Unmap it; nothing writes any more."""
        ...


class DeviceMemory(Protocol):
    """The device of this process. Methods may block, and may be called from any thread."""

    @property
    def device(self) -> str:
        """UUID."""
        ...

    def export(self, num_bytes: int) -> ExportedMemory:
        """Allocate.

        Raises:
            NoDeviceRoomError: there is no room.
            RuntimeError: the device cannot export.
        """
        ...

    def attach(self, handle: bytes, num_bytes: int) -> AttachedMemory:
        """Map what a process of this host has exported. Raises ``RuntimeError``."""
        ...
