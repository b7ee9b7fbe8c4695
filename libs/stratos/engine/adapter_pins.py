"""Adapters of an engine: loading, and pins that keep one from being evicted while a request needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from stratos.core.files.adapter_files import AdapterFiles
from stratos.engine.contract.runner import Runner


class AdapterPins:
    """One per engine; any thread.

    Args:
        runner: holds the adapters.
        changing: held while state changes.
    """

    def __init__(self, runner: Runner, changing: Callable[[], AbstractContextManager[None]]) -> None:
        self._runner, self._changing = runner, changing
        self._pins: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._pins)

    def counts(self) -> dict[str, int]:
        """Pins by digest."""
        return dict(self._pins)

    def load(self, files: AdapterFiles) -> None:
        """``Runner.load_adapter``; adapters with a pin are not evicted."""
        self._runner.load_adapter(files, lambda digest: digest in self._pins)
        with self._changing():
            pass  # the snapshot shows it

    def pin(self, digest: str) -> bool:
        """Keep a loaded adapter from being evicted; ``False`` when it is not loaded. Pins count."""
        with self._changing():
            self._pins[digest] += 1  # before the look: a load in another thread may be choosing a victim
            if not (is_loaded := digest in self._runner.resident_adapters()):
                self.unpin(digest)
            return is_loaded

    def unpin(self, digest: str) -> None:
        """Give a pin back."""
        with self._changing():
            self._pins[digest] -= 1
            if self._pins[digest] <= 0:
                del self._pins[digest]
