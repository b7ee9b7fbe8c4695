"""Memory that a worker shares with its engine process: KV payloads lie in it, messages only name their place.

The memory has no name in the file system, so no file is left however the processes end.  The worker alone
hands out places: for a ``scatter`` until the engine has read the payload, for a ``gather`` until the last view of
the payload is gone.  When it is full callers wait, which slows transfers down and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import tempfile
import weakref
from collections import deque
from typing import Self

import numpy as np

ALIGNMENT = 64


class PayloadMemory:
    """``num_bytes`` of anonymous shared memory with a file descriptor that a child process may inherit."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.fd, self.num_bytes = fd, num_bytes
        self._map = mmap.mmap(fd, num_bytes)

    @classmethod
    def create(cls, num_bytes: int) -> Self:
        """Make new memory; pages are taken when they are first written."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("stratos-engine-payloads")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, num_bytes)
        return cls(fd, num_bytes)

    def view(self, offset: int, size: int) -> memoryview:
        """Writable bytes [offset, offset + size)."""
        if not 0 <= offset <= offset + size <= self.num_bytes:
            raise ValueError(f"[{offset}, {offset + size}) is outside of the shared memory")
        return memoryview(self._map)[offset : offset + size]

    def close(self) -> None:
        """Give the memory back; with views still in use it goes with the last of them."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self._map.close()


class PayloadArena:
    """Hands out places in shared memory, first fit. Belongs to the event loop that made it."""

    def __init__(self, memory: PayloadMemory) -> None:
        self.memory = memory
        self._loop = asyncio.get_running_loop()
        self._free = [(0, memory.num_bytes)]
        """(offset, size) of the holes, by offset."""
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()

    @property
    def num_free_bytes(self) -> int:
        return sum(size for _, size in self._free)

    @property
    def num_lent_bytes(self) -> int:
        return self.memory.num_bytes - self.num_free_bytes

    async def allocate(self, size: int) -> int:
        """Offset of ``size`` bytes, once there is a hole; first come, first served.

        Raises:
            ValueError: it would not fit into the empty arena.
        """
        size = _aligned(size)
        if size > self.memory.num_bytes:
            raise ValueError(f"a payload of {size} bytes does not fit into {self.memory.num_bytes} bytes")
        offset = None if self._waiting else self._find(size)
        if offset is not None:
            return offset
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((size, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(future.result(), size)
            raise

    def release(self, offset: int, size: int) -> None:
        """Make a place free again and serve the callers that wait for one."""
        self._free = _merged(sorted([*self._free, (offset, _aligned(size))]))
        while self._waiting:
            wanted, future = self._waiting[0]
            found = None if future.done() else self._find(wanted)
            if found is None and not future.done():
                return
            self._waiting.popleft()
            if found is not None:
                future.set_result(found)

    def lend(self, offset: int, size: int) -> memoryview:
        """The bytes of a place, which is given back when the last view of them is gone, in any thread."""
        holder = np.frombuffer(self.memory.view(offset, size), dtype=np.uint8)
        weakref.finalize(holder, self._returned, offset, size).atexit = False
        return holder.data

    def _returned(self, offset: int, size: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no caller left to lend to
            self._loop.call_soon_threadsafe(self.release, offset, size)

    def _find(self, size: int) -> int | None:
        for index, (offset, hole) in enumerate(self._free):
            if hole >= size:
                self._free[index : index + 1] = [(offset + size, hole - size)] if hole > size else []
                return offset
        return None


def _aligned(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def _merged(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = holes[:1]
    for offset, size in holes[1:]:
        before, length = merged[-1]
        assert before + length <= offset, "a place was given back twice"
        if before + length == offset:
            merged[-1] = (before, length + size)
        else:
            merged.append((offset, size))
    return merged
