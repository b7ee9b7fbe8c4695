"""A communicator of two ranks by NCCL's own interface: what is lost ends the communicator, and nothing else.

Torch's process groups bring a watchdog that ends the whole process some time after a peer was lost, also where its
environment tells it not to; so NCCL is called itself.  Communicators are non-blocking: their state is asked for until
an operation is done, the peer is lost, or ``abort`` is called from another thread.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

LIBRARY = "libnccl.so.2"
"""That of torch, which has loaded it: importing torch comes first."""
SUCCESS, IN_PROGRESS, UINT8 = 0, 7, 1
ID_BYTES = 128
CONFIG_MAGIC, CONFIG_VERSION = 0xCAFEBEEF, 21400
"""NCCL 2.14's configuration, the first one, which later versions read as well."""
POLL_S = 5e-5


class UniqueId(ctypes.Structure):
    """Id that ranks of one communicator share; handed on by value."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


def load_nccl() -> Any:
    """The library, with the types of what is called. Raises ``OSError`` where it is not there."""
    library: Any = ctypes.CDLL(LIBRARY)
    library.ncclGetErrorString.restype = ctypes.c_char_p
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.ncclCommInitRankConfig.argtypes = (address, number, UniqueId, number, address)
    library.ncclCommGetAsyncError.argtypes = (address, address)
    library.ncclCommAbort.argtypes = (address,)
    for name in ("ncclSend", "ncclRecv"):
        getattr(library, name).argtypes = (address, size, number, number, address, address)
    return library


def make_id(library: Any) -> bytes:
    """A new id, for all ranks of one communicator."""
    found = UniqueId()
    code = library.ncclGetUniqueId(ctypes.pointer(found))
    if code != SUCCESS:
        raise RuntimeError(f"nccl: {_text(library, code)}")
    return bytes(found)


class NcclComm:
    """One rank; operations come from one thread, ``abort`` from any. The device of the thread is the rank's.

    Args:
        library: of ``load_nccl``.
        unique_id: of ``make_id``, the same at both ranks.
        rank: 0 or 1.

    Raises:
        RuntimeError: as every operation, the communicator has failed or was ended.
    """

    def __init__(self, library: Any, unique_id: bytes, rank: int) -> None:
        self._library, self._lock, self._is_ended = library, threading.Lock(), False
        self._comm = ctypes.c_void_p()
        config = _Config(ctypes.sizeof(_Config), CONFIG_MAGIC, CONFIG_VERSION, 0)
        self._check(
            library.ncclCommInitRankConfig(
                ctypes.pointer(self._comm), 2, UniqueId.from_buffer_copy(unique_id), rank, ctypes.pointer(config)
            )
        )

    def send(self, address: int, num_bytes: int, peer: int, stream: int) -> None:
        """Enqueue a send from device memory on a stream of CUDA."""
        self._enqueue(self._library.ncclSend, address, num_bytes, peer, stream)

    def receive(self, address: int, num_bytes: int, peer: int, stream: int) -> None:
        """Enqueue a receive into device memory on a stream of CUDA."""
        self._enqueue(self._library.ncclRecv, address, num_bytes, peer, stream)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Block until ``is_done``; raises when the peer is lost or ``abort`` is called before."""
        while not is_done():
            self._ask()
            time.sleep(POLL_S)
        self._ask()  # an aborted kernel ends as well

    def abort(self) -> None:
        """End it, and the kernels that wait for the peer; once."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
            if self._comm.value is not None:
                self._library.ncclCommAbort(self._comm)

    def _enqueue(self, call: Any, address: int, num_bytes: int, peer: int, stream: int) -> None:
        self.wait(lambda: self._ask() == SUCCESS)  # it is still being made, or the last call is still on its way
        with self._lock:
            self._refuse_ended()
            self._check(call(address, num_bytes, UINT8, peer, self._comm, stream))
        self.wait(lambda: self._ask() == SUCCESS)

    def _ask(self) -> int:
        """Its state; raises unless that is good."""
        with self._lock:
            self._refuse_ended()
            state = ctypes.c_int()
            self._check(self._library.ncclCommGetAsyncError(self._comm, ctypes.pointer(state)))
            self._check(state.value)
            return state.value

    def _refuse_ended(self) -> None:
        if self._is_ended:
            raise RuntimeError("nccl: the communicator was ended")

    def _check(self, code: int) -> None:
        if code not in (SUCCESS, IN_PROGRESS):
            raise RuntimeError(f"nccl: {_text(self._library, code)}")


def _text(library: Any, code: int) -> str:
    return (library.ncclGetErrorString(code) or b"").decode(errors="replace") or f"error {code}"
