"""The device as CUDA's driver has it: exported allocations, mapped ones, copies; a thin layer over ``libcuda``.

The driver library is called and not the runtime, because its name and its calls have been the same since CUDA 4.1,
under every build of torch.  All of it is in the primary context, torch's own, so its kernels see the same
addresses.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from stratos.core.device.payload import DevicePayload, Payload
from stratos.kv_transfer.device.memory import HANDLE_BYTES, NoDeviceRoomError
from stratos.kv_transfer.device.rings import whole_blocks

LIBRARY = "libcuda.so.1"
_LAZY_PEER_ACCESS = 1
_STREAM_NON_BLOCKING = 1
_EVENT_BLOCKING_SYNC_NO_TIMING = 3
_OUT_OF_MEMORY = 2


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle: passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class Driver:
    """Calls of ``libcuda`` in the primary context of one device; each may come from any thread.

    Raises:
        RuntimeError: there is no driver or no such device; each call: what the driver answered, as
            ``NoDeviceRoomError`` if it is out of memory.
    """

    def __init__(self, ordinal: int) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise RuntimeError(f"no CUDA driver: {error}") from error
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)

    def allocate(self, num_bytes: int) -> int:
        """Address of new memory, all zeros: what another process can map must not hold what it may not read."""
        address, size = ctypes.c_uint64(), whole_blocks(num_bytes)
        self._within("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            self._within("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
            self._within("cuCtxSynchronize")
        except RuntimeError:
            self.free(address.value)
            raise
        return address.value

    def free(self, address: int) -> None:
        self._within("cuMemFree_v2", ctypes.c_uint64(address))

    def handle_of(self, address: int) -> bytes:
        handle = _IpcHandle()
        self._within("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        """Address at which the memory of a handle is mapped here."""
        address, given = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(handle)
        self._within("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, address: int) -> None:
        self._within("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def size_of(self, address: int) -> int:
        """Bytes of the allocation that begins at an address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._within("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return size.value if base.value == address else 0

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self._within("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_STREAM_NON_BLOCKING))
        return stream

    def destroy_stream(self, stream: ctypes.c_void_p) -> None:
        self._within("cuStreamDestroy_v2", stream)

    def copy(self, target: int, source: int, num_bytes: int, stream: ctypes.c_void_p) -> None:
        """Copy from host or device memory to either; returns when it is complete, and sleeps until then."""
        event = ctypes.c_void_p()
        self._within("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_EVENT_BLOCKING_SYNC_NO_TIMING))
        try:
            places = ctypes.c_uint64(target), ctypes.c_uint64(source)
            self._within("cuMemcpyAsync", *places, ctypes.c_size_t(num_bytes), stream)
            self._within("cuEventRecord", event, stream)
            self._within("cuEventSynchronize", event)
        finally:
            self._within("cuEventDestroy_v2", event)

    def _within(self, name: str, *arguments: Any) -> None:
        self._call("cuCtxSetCurrent", self._context)
        self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        if (code := getattr(self._library, name)(*arguments)) != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
            kind = NoDeviceRoomError if code == _OUT_OF_MEMORY else RuntimeError
            raise kind(f"{name} answered {code}: {(text.value or b'unknown').decode()}")


class _Exported:
    def __init__(self, driver: Driver, num_bytes: int) -> None:
        self._driver, self._address, self._num_bytes = driver, driver.allocate(num_bytes), num_bytes
        finalizer = weakref.finalize(self, driver.free, self._address)
        finalizer.atexit = False  # the context goes with the process
        self.handle = driver.handle_of(self._address)

    def span(self, offset: int, num_bytes: int) -> DevicePayload:
        if not 0 <= offset <= offset + num_bytes <= self._num_bytes:
            raise ValueError(f"[{offset}, {offset + num_bytes}) is outside of the exported memory")
        address = self._address + offset
        return DevicePayload(
            address=address, nbytes=num_bytes, read=lambda: _read(self._driver, address, num_bytes), owner=self
        )


class _Attached:
    def __init__(self, driver: Driver, handle: bytes, num_bytes: int) -> None:
        self._driver, self._num_bytes, self._address = driver, num_bytes, driver.open(handle)
        try:
            if (found := driver.size_of(self._address)) < num_bytes:
                raise RuntimeError(f"the exported memory has {found} bytes, not {num_bytes}")
            self._stream = driver.stream()
        except RuntimeError:
            driver.close(self._address)
            raise

    def write(self, offset: int, payload: Payload) -> None:
        if not 0 <= offset <= offset + payload.nbytes <= self._num_bytes:
            raise ValueError("outside of the exported memory")
        if isinstance(payload, DevicePayload):
            source = payload.address
        else:
            host = np.frombuffer(payload, dtype=np.uint8)
            source = host.ctypes.data
        self._driver.copy(self._address + offset, source, payload.nbytes, self._stream)

    def detach(self) -> None:
        try:
            self._driver.destroy_stream(self._stream)
        finally:
            self._driver.close(self._address)


class CudaMemory:
    """``DeviceMemory`` of a GPU; the driver is loaded when it is first needed.

    Args:
        ordinal: of the GPU among those that this process sees.
        device: its UUID.
    """

    def __init__(self, ordinal: int, device: str) -> None:
        self.device, self._ordinal = device, ordinal
        self._known: Driver | None = None

    @property
    def _driver(self) -> Driver:
        if self._known is None:
            self._known = Driver(self._ordinal)
        return self._known

    def export(self, num_bytes: int) -> _Exported:
        return _Exported(self._driver, num_bytes)

    def attach(self, handle: bytes, num_bytes: int) -> _Attached:
        return _Attached(self._driver, handle, num_bytes)


def _read(driver: Driver, address: int, num_bytes: int) -> bytes:
    host, stream = np.empty(num_bytes, dtype=np.uint8), driver.stream()
    try:
        driver.copy(host.ctypes.data, address, num_bytes, stream)
    finally:
        driver.destroy_stream(stream)
    return host.tobytes()
