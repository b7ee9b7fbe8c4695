"""Residency of adapters while others load, and steps that go on at the same time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import AdapterUnavailable
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, EngineRequest, PrefillJob, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import PrefillEventKind, StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.lora.host_copy import HostAdapter
from stratos.engine.lora.store import LoraStore
from stratos.engine.lora.weights import LoraWeights
from stratos.engine.settings import SchedulerConfig
from stratos.worker.engine_client.thread import NUM_LOAD_THREADS, ThreadEngine
from tests.support.reference.tiny_models import save_adapter, save_tiny_llama
from tests.support.worlds.plan_driver import load_runner

WAIT_S = 30.0


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


COPY_BYTES = 40


def make_store(capacity: int, host_bytes: int, reads: list[str]) -> LoraStore:
    """A store of adapters of ``COPY_BYTES`` each; "L" is as large as two."""

    def read(files: AdapterFiles) -> HostAdapter:
        reads.append(files.digest)
        num_values = COPY_BYTES // 4 * (1 + (files.digest == "L"))
        return HostAdapter(files.digest, {(0, "q_proj", "A"): torch.zeros(num_values)})

    return LoraStore(capacity, host_bytes, read, lambda copy: LoraWeights(copy.digest, {}))


def test_a_store_without_slots_says_which_setting_gives_it_some() -> None:
    reads = list[str]()
    store = make_store(0, 1 << 30, reads)
    with pytest.raises(AdapterUnavailable, match="takes no adapters: max_resident_adapters is 0"):
        store.load(adapter("A"))
    assert (reads, store.digests()) == ([], ())


def test_an_adapter_pinned_while_another_loads_stays() -> None:
    pinned: set[str] = set()

    def read(files: AdapterFiles) -> HostAdapter:
        if files.digest == "c":
            pinned.add("a")  # a request for the least recently used adapter comes while c is read from disk
        return HostAdapter(files.digest, {})

    store = LoraStore(2, 8, read, lambda copy: LoraWeights(copy.digest, {}))
    for digest in ("a", "b", "c"):
        store.load(adapter(digest), pinned.__contains__)
    assert set(store.digests()) == {"a", "c"}


def test_loading_again_touches_no_disk_while_there_is_a_host_copy() -> None:
    reads: list[str] = []
    store = make_store(1, 2 * COPY_BYTES + 1, reads)
    for digest in "abab":
        store.load(adapter(digest))
        assert store.digests() == (digest,)
    assert reads == ["a", "b"]
    store.load(adapter("c"))
    assert store.host_digests() == ("b", "c"), "the copy used longest ago went"
    store.load(adapter("a"))
    assert reads == ["a", "b", "c", "a"]
    store.load(adapter("L"))
    assert store.host_digests() == ("L",), "memory is what counts"


def test_without_host_copies_every_load_reads() -> None:
    reads: list[str] = []
    store = make_store(1, 0, reads)
    for digest in "aba":
        store.load(adapter(digest))
    assert reads == ["a", "b", "a"]
    assert store.host_digests() == ()


class PinningRunner(FakeRunner):
    """A request pins "a" while "b" loads, through the engine as a worker does."""

    engine: EngineCore

    def load_adapter(self, files: AdapterFiles, *args: Any) -> None:
        if files.digest == "b":
            assert self.engine.pin_adapter("a")
            (is_pinned,) = args
            assert is_pinned("a")
        super().load_adapter(files, *args)


def test_the_engine_shows_pins_made_during_a_load() -> None:
    runner = PinningRunner(FakeConfig())
    engine = runner.engine = EngineCore(runner, SchedulerConfig())
    engine.load_adapter(adapter("a"))
    engine.load_adapter(adapter("b"))
    engine.unpin_adapter("a")
    assert not engine.pin_adapter("unknown")
    assert not engine.inspect().adapter_pins


class SlowReads:
    """Stands before the store's reader: every read stops until it may go on."""

    def __init__(self, store: LoraStore) -> None:
        self._read: Any = store.read
        self.num_begun = 0
        self.begun, self.may_go_on = threading.Semaphore(0), threading.Event()
        store.read = self

    def __call__(self, files: AdapterFiles) -> HostAdapter:
        self.begun.release()
        assert self.may_go_on.wait(WAIT_S)
        return self._read(files)  # type: ignore[no-any-return]


async def test_steps_and_transfers_go_on_while_adapters_load_from_a_slow_disk(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "base")
    files = []
    for index in range(NUM_LOAD_THREADS):
        save_adapter(tmp_path / str(index), model, rank=4, targets=["q_proj"], seed=index)
        files.append(read_adapter_files(tmp_path / str(index)))
    runner = load_runner(tmp_path / "base")
    slow = SlowReads(runner.adapters)
    engine = ThreadEngine(EngineCore(runner, SchedulerConfig()))
    results: list[StepResult] = []
    seen = asyncio.Event()
    engine.subscribe(lambda result: (results.append(result), seen.set()))  # type: ignore[func-returns-value]
    await engine.start()
    loads = [asyncio.create_task(engine.load_adapter(f)) for f in files]
    try:
        for _ in files:
            assert await asyncio.to_thread(slow.begun.acquire, timeout=WAIT_S)
        request = EngineRequest(
            key=RequestKey("r", 0),
            prompt_ids=(1, 2, 3),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
            seed=0,
        )
        await engine.add(request)
        await engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(12))))
        kinds: set[PrefillEventKind] = set()
        while sum(len(r.outputs) for r in results) < 20 or PrefillEventKind.DONE not in kinds:
            seen.clear()
            kinds = {event.kind for result in results for event in result.prefill_events}
            if PrefillEventKind.READY in kinds and PrefillEventKind.DONE not in kinds:
                await engine.grant("leg")
            await seen.wait()
            kinds = {event.kind for result in results for event in result.prefill_events}
        payload, _ = await engine.gather("leg", KvRange(0, 12, 0, 1), on_device=False)
        assert len(payload), "transfers have threads of their own"
        assert not any(load.done() for load in loads), "both loads stood still all the time"
        assert engine.status().resident_adapters == ()
        slow.may_go_on.set()
        await asyncio.gather(*loads)
        assert set(engine.status().resident_adapters) == {f.digest for f in files}
    finally:
        slow.may_go_on.set()
        await asyncio.gather(*loads, return_exceptions=True)
        await engine.close()
