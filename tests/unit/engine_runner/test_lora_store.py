"""Residency of adapters while others load beside it."""

from __future__ import annotations

from pathlib import Path

from stratos.core.adapter_files import AdapterFiles
from stratos.engine.core import EngineCore
from stratos.engine.fake import FakeConfig, FakeRunner
from stratos.engine.lora.store import LoraStore
from stratos.engine.lora.weights import LoraWeights
from stratos.engine.settings import SchedulerConfig


def adapter(digest: str) -> AdapterFiles:
    return AdapterFiles(
        path=Path("unused"),
        digest=digest,
        rank=1,
        alpha=1.0,
        use_rslora=False,
        target_modules=(),
        num_bytes=0,
        shapes={},
    )


def test_an_adapter_pinned_while_another_loads_stays() -> None:
    pinned: set[str] = set()

    def load(files: AdapterFiles) -> LoraWeights:
        if files.digest == "c":
            pinned.add("a")  # a request for the least recently used adapter comes while c is read from disk
        return LoraWeights(files.digest, {})

    store = LoraStore(2, load)
    for digest in ("a", "b", "c"):
        store.load(adapter(digest), pinned)
    assert set(store.digests()) == {"a", "c"}


class PinningRunner(FakeRunner):
    """A request pins "a" while "b" loads, through the engine as a worker does."""

    engine: EngineCore

    def load_adapter(self, files: AdapterFiles, pinned=frozenset()) -> None:  # type: ignore[no-untyped-def]
        if files.digest == "b":
            assert self.engine.pin_adapter("a")
            assert "a" in pinned
        super().load_adapter(files, pinned)


def test_the_engine_shows_pins_made_during_a_load() -> None:
    runner = PinningRunner(FakeConfig())
    engine = runner.engine = EngineCore(runner, SchedulerConfig())
    engine.load_adapter(adapter("a"))
    engine.load_adapter(adapter("b"))
    engine.unpin_adapter("a")
    assert not engine.pin_adapter("unknown")
    assert not engine._adapter_pins
