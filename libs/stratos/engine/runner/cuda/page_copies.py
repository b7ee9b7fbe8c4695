"""Copies between the pages of a GPU and everything else, on a stream of their own: no copy waits for launched steps.

    pack     pages -> a run in the device's memory, with its checksum
    unpack   a run in the device's memory -> pages, with the checksum of what was written
    gather   pack, then to page-locked host memory
    scatter  from host memory, then unpack

Why no step needs to be waited for: KV that may be read was collected, blocks that may be written are in no plan.  Each
call waits, asleep, for an event after its own work.  Calls may come from any thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor

from stratos.core.device.checksum import WORD_BYTES, finish
from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvRange
from stratos.engine.layers.thread_scope import one_thread
from stratos.engine.memory import packing
from stratos.engine.memory.copies import HostCopies, to_device
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.triton_kernels.kv_copies import copy_kv


class PageCopies:
    """Copies of one pool; on a CPU, for tests, everything happens at once and in order."""

    def __init__(self, pages: KvPages) -> None:
        self._pages, self._device = pages, pages.tensor.device
        is_gpu = self._device.type == "cuda"
        self.stream = torch.cuda.Stream(self._device) if is_gpu else None  # type: ignore[no-untyped-call]
        row_bytes = pages.geometry.head_dim * pages.tensor.itemsize
        self._has_words = row_bytes % WORD_BYTES == 0
        """A token of a head is a number of whole words: the kernel copies it."""
        self._view = pages.tensor.view(torch.int64 if self._has_words else torch.uint8)

    def warm_up(self) -> None:
        """Compile every kernel; block 0 has no owner yet."""
        first = KvRange(0, 1, 0, 1)
        self.scatter((0,), first, self.gather((0,), first))
        self.unpack((0,), first, self.pack((0,), first)[0])

    def pack(self, block_table: Sequence[int], kv_range: KvRange) -> tuple[Tensor, int]:
        """A run in wire layout, uint8 on the device and complete, and its checksum.

        Raises:
            ValueError: the range is outside of the table or the model.
        """
        with self._working():
            run = self._new_run(block_table, kv_range)
            total = self._copy(block_table, kv_range, run, is_pack=True, has_sum=True)
            checksum = self._finished(total, run)
        return run.view(-1).view(torch.uint8), checksum

    def unpack(self, block_table: Sequence[int], kv_range: KvRange, run: Tensor) -> int:
        """Write a run of the device into the pages; returns the checksum of what was written.

        Args:
            block_table: block ids of the sequence from position 0.
            kv_range: tokens by their positions, and layers.
            run: uint8, contiguous, in wire layout.

        Raises:
            ValueError: ``run`` does not have the size of the range.
        """
        with self._working():
            shaped = self._shaped(block_table, kv_range, run)
            total = self._copy(block_table, kv_range, shaped, is_pack=False, has_sum=True)
            return self._finished(total, shaped)

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        """Copy a range out of the pool, as ``Runner.gather`` does."""
        with self._working():
            run = self._new_run(block_table, kv_range)
            self._copy(block_table, kv_range, run, is_pack=True, has_sum=False)
            (host,) = HostCopies([run.view(-1).view(torch.uint8)]).wait()
        return memoryview(host.numpy())  # type: ignore[arg-type]  # numpy hides the protocol

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        """Copy a range into the pool, as ``Runner.scatter`` does."""
        with self._working():
            shaped = self._shaped(block_table, kv_range, self._uploaded(payload))
            self._copy(block_table, kv_range, shaped, is_pack=False, has_sum=False)
            self._wait()

    @contextmanager
    def _working(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.stream is None:
                stack.enter_context(one_thread())
            else:
                stack.enter_context(torch.cuda.device(self._device))
                stack.enter_context(torch.cuda.stream(self.stream))
            yield

    def _copy(
        self, block_table: Sequence[int], kv_range: KvRange, run: Tensor, *, is_pack: bool, has_sum: bool
    ) -> Tensor | None:
        if not run.numel():
            return torch.zeros(1, dtype=torch.int64, device=self._device)
        size = self._pages.geometry.block_size
        first, last = kv_range.token_begin // size, -(-kv_range.token_end // size)
        blocks = to_device(np.array(block_table[first:last], dtype=np.int32), self._device)
        offset, layer = kv_range.token_begin - first * size, kv_range.layer_begin
        if self._has_words:
            return copy_kv(self._view, blocks, offset, run, layer_begin=layer, is_pack=is_pack, has_sum=has_sum)
        (packing.pack if is_pack else packing.unpack)(self._view, blocks, offset, run, layer)
        return packing.sum_of_mixed(run) if has_sum else None

    def _uploaded(self, payload: memoryview) -> Tensor:
        """The payload in the device's memory, copied once by the host, into page-locked memory on a GPU."""
        host = torch.empty(payload.nbytes, dtype=torch.uint8, pin_memory=self.stream is not None)
        host.numpy()[:] = np.frombuffer(payload, dtype=np.uint8)
        return host.to(self._device, non_blocking=True)

    def _new_run(self, block_table: Sequence[int], kv_range: KvRange) -> Tensor:
        *outer, _ = self._pages.wire_shape(block_table, kv_range)
        return torch.empty((*outer, self._view.shape[-1]), dtype=self._view.dtype, device=self._device)

    def _shaped(self, block_table: Sequence[int], kv_range: KvRange, run: Tensor) -> Tensor:
        *outer, _ = self._pages.wire_shape(block_table, kv_range)
        shape = torch.Size((*outer, self._view.shape[-1]))
        expected = shape.numel() * self._view.itemsize
        if run.numel() != expected:
            raise ValueError(f"the payload has {run.numel()} bytes, the range needs {expected}")
        return run.view(self._view.dtype).view(shape)

    def _finished(self, total: Tensor | None, run: Tensor) -> int:
        assert total is not None, "it was asked for"
        (value,) = HostCopies([total]).wait()
        return finish(int(value), run.numel() * run.itemsize)

    def _wait(self) -> None:
        if self.stream is not None:
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record()
            done.synchronize()


class _Interface:
    """Memory that torch did not allocate, as it takes it."""

    def __init__(self, payload: DevicePayload) -> None:
        self._payload = payload  # torch keeps this object, and so the memory
        self.__cuda_array_interface__ = {
            "shape": (payload.nbytes,),
            "typestr": "|u1",
            "data": (payload.address, False),
            "version": 3,
        }


def bytes_at(payload: DevicePayload, device: torch.device) -> Tensor:
    """A payload as uint8 on the device, without a copy; keep ``payload`` while the tensor is used."""
    if device.type == "cuda":
        return torch.as_tensor(_Interface(payload), device=device)
    return torch.frombuffer((ctypes.c_ubyte * payload.nbytes).from_address(payload.address), dtype=torch.uint8)
