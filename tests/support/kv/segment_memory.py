"""A file that plays the memory of a device, for transports through exported memory: handles, mappings and faults.

As a driver it punishes what CUDA leaves undefined: memory that is freed while another process maps it is counted.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import weakref
from pathlib import Path

import numpy as np

from stratos.core.device.payload import DevicePayload, Payload
from stratos.kv_transfer.device.memory import HANDLE_BYTES
from stratos.kv_transfer.device.receiver import CUDA_IPC, DeviceRings
from stratos.kv_transfer.device.sender import DeviceAttacher
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import TransportEnds

SEGMENTS = CUDA_IPC
"""The transport that tests give this memory."""


class Exported:
    def __init__(self, folder: Path, num_bytes: int) -> None:
        path = folder / secrets.token_hex(16)
        path.write_bytes(bytes(num_bytes))
        self.handle = path.name.encode().ljust(HANDLE_BYTES, b"\0")
        self._map = _mapped(path, num_bytes)
        weakref.finalize(self, _free, path)

    def span(self, offset: int, num_bytes: int) -> DevicePayload:
        return span_of(np.frombuffer(self._map, dtype=np.uint8, count=num_bytes, offset=offset), self)


class Attached:
    def __init__(self, path: Path, num_bytes: int) -> None:
        self._marker = path.with_suffix(f".mapped-{secrets.token_hex(4)}")
        try:
            self._map: mmap.mmap | None = _mapped(path, num_bytes)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"no such memory: {error}") from error
        self._lock = os.open(self._marker, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # a process that dies gives it up

    def write(self, offset: int, payload: Payload) -> None:
        assert self._map is not None, "unmapped"
        if isinstance(payload, DevicePayload):
            self._map[offset : offset + payload.nbytes] = ctypes.string_at(payload.address, payload.nbytes)
        else:
            self._map[offset : offset + payload.nbytes] = payload

    def detach(self) -> None:
        assert self._map is not None, "unmapped twice"
        self._map.close()
        self._map = None
        self._marker.unlink()
        os.close(self._lock)


class SegmentMemory:
    """One device; processes that are given the same folder share it."""

    device = "GPU-of-files"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def export(self, num_bytes: int) -> Exported:
        return Exported(self.folder, num_bytes)

    def attach(self, handle: bytes, num_bytes: int) -> Attached:
        return Attached(self.folder / handle.rstrip(b"\0").decode(), num_bytes)

    @property
    def num_allocations(self) -> int:
        return sum(not path.suffix for path in self.folder.iterdir())

    @property
    def freed_too_early(self) -> list[str]:
        """Allocations that were freed while a living process mapped them."""
        return [path.name for path in self.folder.iterdir() if path.suffix == ".freed-too-early"]


def ends_over(directory: Path, staging: StagingConfig, timeout_s: float) -> TransportEnds:
    memory = SegmentMemory(directory.parent / "device")
    rings = DeviceRings(staging, directory, timeout_s, memory)
    connect = DeviceAttacher(directory, timeout_s, memory).connect
    return TransportEnds(open_ring=rings.open_ring, connect=connect, close=rings.close)


def span_of(array: np.ndarray, owner: object) -> DevicePayload:
    return DevicePayload(address=array.ctypes.data, nbytes=array.nbytes, read=array.tobytes, owner=(array, owner))


def _mapped(path: Path, num_bytes: int) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), num_bytes)


def _free(path: Path) -> None:
    for marker in path.parent.glob(f"{path.name}.mapped-*"):
        with marker.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                path.with_suffix(".freed-too-early").touch()
            else:
                marker.unlink()
    path.unlink(missing_ok=True)
