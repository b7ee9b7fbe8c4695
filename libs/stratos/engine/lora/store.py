"""Residency of adapters: slots on the device and copies on the host, each a bounded map in order of use.

    load -> in a slot? else a host copy, else its folder -> laid out while steps run -> published by one assignment

So loading never disturbs a step: the lock is held for look-ups and the swap, never while something is read, converted
or laid out.  The caller says which adapters have sequences (``is_pinned``); the least recently used of the others gives
up its slot and keeps its host copy.  A caller that wants to keep an adapter pins it first and looks then whether it
is resident: victims are chosen under the same lock as ``digests`` reads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from stratos.common.errors import AdapterUnavailable
from stratos.core.files.adapter_files import AdapterFiles
from stratos.engine.lora.host_copy import HostAdapter
from stratos.engine.lora.weights import LoraWeights


class LoraStore:
    """Loaded adapters by digest; safe to use from several threads.

    Args:
        capacity: slots: maximum number of adapters on the device; 0 takes none.
        host_bytes: maximum memory of the copies kept on the host, those of adapters in slots included; 0 keeps none.
        read: reads one adapter from its folder; may raise ``InvalidAdapter``.
        lay_out: makes one ready on the device.
    """

    def __init__(
        self,
        capacity: int,
        host_bytes: int,
        read: Callable[[AdapterFiles], HostAdapter],
        lay_out: Callable[[HostAdapter], LoraWeights],
    ) -> None:
        self._capacity, self._host_bytes = capacity, host_bytes
        self.read, self._lay_out = read, lay_out
        self._slots: OrderedDict[str, LoraWeights] = OrderedDict()
        self._host: OrderedDict[str, HostAdapter] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, files: AdapterFiles, is_pinned: Callable[[str], bool] = lambda _: False) -> None:
        """Load an adapter, or only mark it as used when it is resident.

        Raises:
            InvalidAdapter: it does not fit the model.
            AdapterUnavailable: every slot holds a pinned adapter.
        """
        with self._lock:
            if files.digest in self._slots:
                self._slots.move_to_end(files.digest)
                return
            self._victim(is_pinned)
            copy = self._host.get(files.digest)
        if copy is None:
            copy = self.read(files)
        weights = self._lay_out(copy)
        with self._lock:
            victim = None if files.digest in self._slots else self._victim(is_pinned)
            if victim is not None:
                del self._slots[victim]
            self._slots[files.digest] = weights
            self._keep(copy)

    def _keep(self, copy: HostAdapter) -> None:
        self._host[copy.digest] = copy
        self._host.move_to_end(copy.digest)
        num_bytes = sum(kept.num_bytes for kept in self._host.values())
        while num_bytes > self._host_bytes:
            num_bytes -= self._host.popitem(last=False)[1].num_bytes

    def _victim(self, is_pinned: Callable[[str], bool]) -> str | None:
        """The adapter that makes room; ``None`` when a slot is free."""
        if len(self._slots) < self._capacity:
            return None
        for digest in self._slots:
            if not is_pinned(digest):
                return digest
        if not self._capacity:
            raise AdapterUnavailable("this worker takes no adapters: max_resident_adapters is 0")
        raise AdapterUnavailable(
            f"all {self._capacity} adapter slots hold adapters in use; raise max_resident_adapters"
        )

    def touch(self, digest: str) -> LoraWeights | None:
        """The adapter, marked as used now; ``None`` when it is not resident."""
        with self._lock:
            weights = self._slots.get(digest)
            if weights is not None:
                self._slots.move_to_end(digest)
            return weights

    def digests(self) -> tuple[str, ...]:
        """Resident adapters, least recently used first."""
        with self._lock:
            return tuple(self._slots)

    def host_digests(self) -> tuple[str, ...]:
        """Adapters with a copy on the host, least recently loaded first."""
        with self._lock:
            return tuple(self._host)
