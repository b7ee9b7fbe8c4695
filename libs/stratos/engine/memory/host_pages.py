"""The host tier of the KV pool: blocks in host memory, and copies between them and the device pages.

Layout of a slot is that of a block (``kv_pages``), so a copy is one contiguous run and bit for bit.  On a device with
memory of its own the slots are pinned, and a copy is one DMA, on the step's stream (``swap``) or on a stream of its own
(``start``).  Which block goes where is the plan's decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from stratos.common.clock import Clock
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.memory.kv_pages import KvPages, check_memory
from stratos.engine.memory.named_memory import NamedMemory

NAME = "stratos-kv-host"
"""Of the file that the slots are."""


class HostSwap:
    """Copies under way, or done.

    Args:
        pages: host pages of the copies.
        outs: slots that they fill.
        damaged: slots that they read and whose content had changed.
        seconds: that they took, where they are done.
        begin: of the copies on the device.
        end: of them.
    """

    def __init__(
        self,
        pages: HostPages,
        outs: Sequence[int] = (),
        damaged: tuple[int, ...] = (),
        seconds: float = 0.0,
        begin: torch.cuda.Event | None = None,
        end: torch.cuda.Event | None = None,
    ) -> None:
        self._pages, self._outs, self._seconds, self._begin, self._end = pages, outs, seconds, begin, end
        self.damaged = damaged

    def wait(self) -> float:
        """Seconds of the copies, by the device's clock where it made them, and of sums; returns when all are done."""
        if self._begin is not None and self._end is not None:
            self._end.synchronize()
            self._seconds += self._begin.elapsed_time(self._end) / 1e3
            self._begin = self._end = None
            self._seconds += self._pages.note_content(self._outs)
        return self._seconds


class HostPages:
    """``num_slots`` blocks in host memory, for copies of ``pages``; without any it costs nothing.

    Of each slot the sum of its 64-bit words is kept when it is filled, and compared when it is read: one flipped bit
    always changes it.  Sums are of the device pages, before they leave and when they have come, where these are host
    memory as well: so a bit that flips during a copy is seen, too.  Where a DMA copies, sums are of the slots, after it
    and before it: a bit that flips while a copy is under way is not seen there.
    """

    def __init__(self, pages: KvPages, num_slots: int, clock: Clock) -> None:
        self.num_slots = num_slots
        self._pages, self._clock = pages.tensor, clock
        shape = (num_slots, *pages.tensor.shape[1:])
        num_bytes = num_slots * pages.tensor[0].nbytes
        check_memory(num_bytes, "host_pool_bytes")
        try:
            self._memory = NamedMemory(NAME, num_bytes, pages.tensor.is_cuda) if num_bytes else None
        except (OSError, RuntimeError) as error:
            raise InvalidCheckpoint(f"a host pool of {num_bytes} bytes cannot be had; lower host_pool_bytes") from error
        raw = torch.empty(0, dtype=torch.uint8) if self._memory is None else self._memory.tensor
        self.slots = raw.view(pages.tensor.dtype).view(shape)
        self._bytes = raw.view(num_slots, -1) if num_slots else raw
        word = torch.uint8 if pages.tensor[0].nbytes % 8 else torch.int64
        self._words = self.slots.view(num_slots, pages.tensor[0].numel()).view(word)
        self._block_words = pages.tensor.view(len(pages.tensor), pages.tensor[0].numel()).view(word)
        self._sums = [0] * num_slots

    def note_content(self, slots: Iterable[int]) -> float:
        """Slots were filled: keep their sums. Returns the seconds that this took."""
        began_s = self._clock.now()
        for slot in slots:
            self._sums[slot] = int(self._words[slot].sum())
        return self._clock.now() - began_s

    def read(self, slot: int) -> memoryview | None:
        """Bytes of a filled slot; ``None`` where they have changed since. Any thread, while no copy fills it."""
        if int(self._words[slot].sum()) != self._sums[slot]:
            return None
        return memoryview(self._bytes[slot].numpy())  # type: ignore[arg-type]  # numpy hides the protocol

    def fill(self, slot: int, content: bytes) -> None:
        """Fill a slot with the bytes of one. Any thread, while no copy touches it."""
        self._bytes[slot].numpy()[:] = np.frombuffer(content, dtype=np.uint8)
        self._sums[slot] = int(self._words[slot].sum())

    def _damaged(self, outs: Sequence[tuple[int, int]], ins: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Slots to be read, but those that the same copies fill, whose content has changed."""
        filled = {slot for _, slot in outs}
        slots = [slot for slot, _ in ins if slot not in filled]
        return tuple(slot for slot in slots if int(self._words[slot].sum()) != self._sums[slot])

    def swap(self, outs: Sequence[tuple[int, int]], ins: Sequence[tuple[int, int]]) -> HostSwap:
        """Copy (block, slot) out, then (slot, block) in; returns when all are done.

        A slot whose content has changed is copied as well, and named in the result.
        """
        if not outs and not ins:
            return HostSwap(self)
        start = self._clock.now()
        if not self._pages.is_cuda:
            damaged = self._swap_in_host_memory(outs, ins)
            return HostSwap(self, damaged=damaged, seconds=self._clock.now() - start)
        damaged = self._damaged(outs, ins)
        for block, slot in outs:
            self.slots[slot].copy_(self._pages[block], non_blocking=True)
        for slot, block in ins:
            self._pages[block].copy_(self.slots[slot], non_blocking=True)
        torch.cuda.current_stream(self._pages.device).synchronize()
        self.note_content(slot for _, slot in outs)
        return HostSwap(self, damaged=damaged, seconds=self._clock.now() - start)

    def _swap_in_host_memory(self, outs: Sequence[tuple[int, int]], ins: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Do as ``swap``; returns the slots whose content had changed when it came."""
        for block, slot in outs:
            self._sums[slot] = int(self._block_words[block].sum())
            self.slots[slot].copy_(self._pages[block])
        damaged = []
        for slot, block in ins:
            self._pages[block].copy_(self.slots[slot])
            if int(self._block_words[block].sum()) != self._sums[slot]:
                damaged.append(slot)
        return tuple(damaged)

    def start(
        self,
        outs: Sequence[tuple[int, int]],
        ins: Sequence[tuple[int, int]],
        stream: torch.cuda.Stream | None,
        *,
        is_fenced: bool,
    ) -> HostSwap:
        """Enqueue what ``swap`` does, on a stream of its own and after all that was launched before.

        Args:
            outs: (block, slot).
            ins: (slot, block).
            stream: of the copies; ``None`` where there is none: then they are done at once.
            is_fenced: no work that is launched before the copies end touches their blocks; else such work waits.
        """
        if stream is None or not (outs or ins):
            return self.swap(outs, ins)
        began_s = self._clock.now()
        damaged = self._damaged(outs, ins)
        looked_s = self._clock.now() - began_s
        launched = torch.cuda.current_stream(self._pages.device)
        begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream.wait_stream(launched)
        with torch.cuda.stream(stream):
            begin.record()
            for block, slot in outs:
                self.slots[slot].copy_(self._pages[block], non_blocking=True)
            for slot, block in ins:
                self._pages[block].copy_(self.slots[slot], non_blocking=True)
            end.record()
        if not is_fenced:
            launched.wait_event(end)
        return HostSwap(self, [slot for _, slot in outs], damaged, looked_s, begin, end)
