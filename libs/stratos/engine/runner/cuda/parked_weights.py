"""Weights of a model that sleeps, in page-locked host memory: the device's memory is free until they come back.

Tensors stay the objects that they are, without memory in the meantime.  Afterwards they may lie elsewhere, so what has
noted addresses, captured steps above all, must be made again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from stratos.common.errors import InvalidCheckpoint


class ParkedWeights:
    """Copies of all memory of some tensors, which gives it up when the last copy is made.

    Args:
        tensors: of one device; those that share memory do so afterwards, too.

    Raises:
        InvalidCheckpoint: host memory is short; the tensors are as they were.
    """

    @torch.inference_mode()
    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        try:
            self._parked = [(storage, _host_copy(storage)) for storage in storages.values() if storage.nbytes()]
        except RuntimeError as error:
            raise InvalidCheckpoint(
                f"host memory is too short for the weights of a model that sleeps: {error}"
            ) from error
        self.num_bytes = sum(copy.nbytes for _, copy in self._parked)
        for storage, _ in self._parked:
            storage.resize_(0)

    @torch.inference_mode()
    def bring_back(self) -> None:
        """Take memory of the device again, and fill it.

        Raises:
            InvalidCheckpoint: the device's memory is short.
        """
        try:
            for storage, copy in self._parked:
                storage.resize_(copy.nbytes)
                _bytes_of(storage).copy_(copy, non_blocking=True)
        except RuntimeError as error:
            raise InvalidCheckpoint(
                f"the device has no memory for the weights of a model that wakes: {error}"
            ) from error
        if self._parked and self._parked[0][0].device.type == "cuda":
            torch.cuda.synchronize(self._parked[0][0].device)  # the copies in host memory end with this object


def _host_copy(storage: UntypedStorage) -> Tensor:
    copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
    return copy.copy_(_bytes_of(storage))


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
