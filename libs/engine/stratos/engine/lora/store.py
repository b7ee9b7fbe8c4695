"""Residency of adapters: a bounded map in order of use.

An adapter's tensors are built before it is published by one assignment, so loading never disturbs a step.  The
caller says which adapters have sequences (``pinned``); the least recently used of the others makes room.  Whoever
wants to keep an adapter pins it first and looks then whether it is resident: victims are chosen under the same lock
as ``digests`` reads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container

from stratos.common.errors import AdapterUnavailable
from stratos.core.adapter_files import AdapterFiles
from stratos.engine.lora.weights import LoraWeights


class LoraStore:
    """Loaded adapters by digest; safe to use from several threads.

    Args:
        capacity: most adapters held at once.
        loader: builds the tensors of one adapter; may raise ``InvalidAdapter``.
    """

    def __init__(self, capacity: int, loader: Callable[[AdapterFiles], LoraWeights]) -> None:
        self._capacity, self._loader = capacity, loader
        self._loaded: OrderedDict[str, LoraWeights] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, files: AdapterFiles, pinned: Container[str] = frozenset()) -> None:
        """Load an adapter, or only mark it as used when it is resident.

        Raises:
            InvalidAdapter: it does not fit the model.
            AdapterUnavailable: every slot holds a pinned adapter.
        """
        with self._lock:
            if files.digest in self._loaded:
                self._loaded.move_to_end(files.digest)
                return
            self._victim(pinned)
        weights = self._loader(files)
        with self._lock:
            victim = None if files.digest in self._loaded else self._victim(pinned)
            if victim is not None:
                del self._loaded[victim]
            self._loaded[files.digest] = weights

    def _victim(self, pinned: Container[str]) -> str | None:
        """Who makes room: ``None`` when a slot is free."""
        if len(self._loaded) < self._capacity:
            return None
        for digest in self._loaded:
            if digest not in pinned:
                return digest
        raise AdapterUnavailable(
            f"all {self._capacity} adapter slots hold adapters in use; raise max_resident_adapters"
        )

    def unload(self, digest: str) -> None:
        """Forget an adapter; unknown digests are ignored. A running step keeps the tensors it has."""
        with self._lock:
            self._loaded.pop(digest, None)

    def touch(self, digest: str) -> LoraWeights | None:
        """The adapter, marked as used now; ``None`` when it is not resident."""
        with self._lock:
            weights = self._loaded.get(digest)
            if weights is not None:
                self._loaded.move_to_end(digest)
            return weights

    def digests(self) -> tuple[str, ...]:
        """Resident adapters, least recently used first."""
        with self._lock:
            return tuple(self._loaded)
