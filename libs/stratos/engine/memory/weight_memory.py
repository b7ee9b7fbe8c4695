"""Memory of a model's weights on a CPU, which a model that sleeps gives back to the system.

Loading takes memory piece by piece, always in one order.  Giving back leaves every address as it is, with zeros behind
it: so layers, pointers of the kernels and checksums stay what they were, and filling writes the same bytes to the same
places by going through the loading again, in which each piece gets the memory that it had.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.memory.huge_pages import zeroed_bytes

SMALL_PAGE_BYTES = mmap.PAGESIZE


class WeightMemory:
    """One model's, which one thread at a time loads. What others take is theirs: adapters are laid out at any time."""

    def __init__(self) -> None:
        self._taken: list[Tensor] = []
        self._is_noting = False
        self._again: Iterator[Tensor] | None = None
        self._filler: int | None = None
        """Thread that fills."""

    @property
    def num_bytes(self) -> int:
        """All that was taken."""
        return sum(memory.nbytes for memory in self._taken)

    def take(self, num_bytes: int) -> Tensor:
        """Memory for a piece, uint8 [num_bytes]: zeros, or while filling what the piece had.

        Raises:
            InvalidCheckpoint: while filling: the piece is not the one that came at this place.
        """
        if self._again is not None and self._filler == threading.get_ident():
            memory = next(self._again, None)
            if memory is None or memory.nbytes != num_bytes:
                raise InvalidCheckpoint("the weights are laid out otherwise than when they were loaded")
            return memory
        memory = zeroed_bytes(num_bytes)
        if self._is_noting:
            self._taken.append(memory)
        return memory

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Within it the model is loaded; what is taken outside is not the model's."""
        self._is_noting = True
        try:
            yield
        finally:
            self._is_noting = False

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Within it the model is loaded again."""
        self._again, self._filler = iter(self._taken), threading.get_ident()
        try:
            yield
            if next(self._again, None) is not None:
                raise InvalidCheckpoint("the weights are fewer than when they were loaded")
        finally:
            self._again = None

    def give_back(self) -> int:
        """Give the memory back; returns how many bytes. It reads as zeros, but for the edges of small pieces."""
        return sum(map(give_back, self._taken))


def give_back(tensor: Tensor) -> int:
    """Give the whole pages under a tensor of ordinary memory back to the system; returns how many bytes.

    Its address stays, and reads as zeros from then on.
    """
    begin = -(-tensor.data_ptr() // SMALL_PAGE_BYTES) * SMALL_PAGE_BYTES
    num_bytes = (tensor.data_ptr() + tensor.nbytes - begin) // SMALL_PAGE_BYTES * SMALL_PAGE_BYTES
    if num_bytes <= 0 or not hasattr(mmap, "MADV_DONTNEED"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED):
        return 0  # memory that is locked stays
    return num_bytes


def kept_copy(tensor: Tensor, memory: WeightMemory) -> Tensor:
    """A contiguous copy in memory of the model."""
    copy = memory.take(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor) if tensor.numel() else torch.empty_like(tensor)
