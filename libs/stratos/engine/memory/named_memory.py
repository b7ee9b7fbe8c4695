"""Host memory with a name: a file of memory, so that it can be told from outside what it is (``/proc/PID/fd``).

For copies of a device it is registered with the device's driver.  torch's own pinned memory is not taken: it rounds a
size up to a power of two, so that a pool of 33 GiB pins 64.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


@dataclass(eq=False, weakref_slot=True, slots=True)
class NamedMemory:
    """Zeros that cost nothing until they are touched.

    Args:
        name: of the file.
        num_bytes: above 0.
        is_pinned: a device copies from it and to it without the host.

    Raises:
        OSError, RuntimeError: the system, or the device's driver, refuses so much.
    """

    name: str
    num_bytes: int
    is_pinned: bool
    tensor: Tensor = field(init=False)
    """uint8 [num_bytes]; this object must live as long as a device copies."""

    def __post_init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            self.tensor = torch.empty(self.num_bytes, dtype=torch.uint8, pin_memory=self.is_pinned)
            return
        fd = os.memfd_create(self.name)
        try:
            os.ftruncate(fd, self.num_bytes)
            mapping = mmap.mmap(fd, self.num_bytes)
        except OverflowError as error:
            raise OSError(str(error)) from error
        finally:
            os.close(fd)  # the mapping has one of its own
        self.tensor = torch.frombuffer(mapping, dtype=torch.uint8)
        if self.is_pinned:
            self._register()

    def _register(self) -> None:
        runtime, address = torch.cuda.cudart(), self.tensor.data_ptr()  # type: ignore[no-untyped-call]
        if code := int(runtime.cudaHostRegister(address, self.num_bytes, 0)):
            _clear_error()
            _log.warning("the driver registers no memory (error %d); torch pins it, rounded up", code)
            self.tensor = torch.empty(self.num_bytes, dtype=torch.uint8, pin_memory=True)
            return
        weakref.finalize(self, runtime.cudaHostUnregister, address)


def _clear_error() -> None:
    """Let a launch that does nothing take the blame: the runtime keeps a refusal as this thread's last error, and the
    check after the next launch raises it, whatever that launch was."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
