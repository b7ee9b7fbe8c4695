"""Large blocks of host memory: zeros that cost nothing until they are touched, in huge pages where the system has them.

With pages of 4 KiB a model's weights are some hundred thousand page faults at start and as many entries that the
processor looks up while it streams them.  Does not track or limit memory.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def zeroed_bytes(num_bytes: int) -> Tensor:
    """Zeros, uint8 [num_bytes], given back when the last view of them is gone.

    Raises:
        MemoryError: the system refuses so much.
    """
    if num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    try:
        mapping = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from error
    with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary ones do
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[begin : begin + num_bytes]
