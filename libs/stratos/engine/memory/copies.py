"""Copies between host and device: enqueued, and waited for only where the result is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNMENT_BYTES = 16
"""Alignment of tensors within a packed copy: Triton compiles another variant of a kernel for less."""


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Enqueue a copy to the device, from pinned memory where it is a GPU."""
    host = torch.from_numpy(array)
    if not array.size:
        return torch.empty_like(host, device=device)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def copy_to_device(array: np.ndarray, target: Tensor) -> None:
    """Enqueue a copy into memory of the device, from pinned memory where it is a GPU."""
    host = torch.from_numpy(array)
    target.copy_(host.pin_memory() if target.is_cuda else host, non_blocking=True)


def pack_to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Enqueue one copy for several arrays of one type; the results are views of it, each aligned."""
    dtype = arrays[0].dtype
    unit = ALIGNMENT_BYTES // dtype.itemsize
    begins, total = [], 0
    for array in arrays:
        begins.append(total)
        total += -(-array.size // unit) * unit
    host = np.zeros(total, dtype=dtype)
    for array, begin in zip(arrays, begins, strict=True):
        host[begin : begin + array.size] = array.reshape(-1)
    packed = to_device(host, device)
    return [packed[begin : begin + array.size].view(array.shape) for array, begin in zip(arrays, begins, strict=True)]


class HostCopies:
    """Tensors on their way to the host, after everything enqueued before them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors and tensors[0].is_cuda:
            self._tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
            for host, tensor in zip(self._tensors, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
            # a blocking event sleeps instead of spinning on the driver's lock
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._tensors = [tensor.clone() for tensor in tensors]

    def wait(self) -> list[Tensor]:
        """The copies, in the order given; waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
