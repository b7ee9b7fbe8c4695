"""The adapter cache: shared fetches, checks, LRU by bytes, outages, full disks."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import struct
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.errors import AdapterMismatch, AdapterUnavailable, BadRequest, DependencyDown
from stratos.core.adapter import AdapterRef
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.store.local_store import LocalStore
from stratos.worker.adapter_cache import AdapterCache, remove_leftovers
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import AdapterCacheConfig


class CountingStore(LocalStore):
    """A local store that can be down, slow or without disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_downloads = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.error: Exception | None = None

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = 1 << 30
    ) -> None:
        self.num_downloads += 1
        await self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        await super().download_folder(folder, destination, names=names, max_bytes=max_bytes)


class Bench:
    def __init__(self, tmp_path: Path, max_bytes: int = 1 << 20) -> None:
        self.root = tmp_path / "store"
        self.directory = tmp_path / "cache"
        self.store = CountingStore(self.root)
        self.core = EngineCore(FakeRunner(FakeConfig()), SchedulerConfig())
        self.engine = ThreadEngine(self.core)
        self.max_bytes = max_bytes
        self.cache = self.new_cache()

    def new_cache(self) -> AdapterCache:
        config = AdapterCacheConfig(directory=self.directory, max_bytes=self.max_bytes)
        self.registry = CollectorRegistry()
        return AdapterCache(self.store, self.engine, config, WorkerMetrics(self.registry))

    def found(self) -> dict[str, float]:
        """Requests for adapters by where they were found."""
        values = {
            place: self.registry.get_sample_value("stratos_adapter_requests_total", {"found": place}) or 0.0
            for place in ("engine", "disk", "store")
        }
        return {place: value for place, value in values.items() if value}

    def outcomes(self) -> dict[str, float]:
        """Fetches by outcome, of those that have a series."""
        (family,) = [one for one in self.registry.collect() if one.name == "stratos_adapter_loads"]
        return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}

    def register(self, name: str, value: float) -> str:
        """Write a rank-1 adapter; returns its digest."""
        folder = self.root / name
        folder.mkdir(parents=True)
        tensor = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        header = json.dumps({
            f"{tensor}A.weight": {"dtype": "F32", "shape": [1, 4], "data_offsets": [0, 16]},
            f"{tensor}B.weight": {"dtype": "F32", "shape": [4, 1], "data_offsets": [16, 32]},
        }).encode()  # fmt: skip
        data = struct.pack("<8f", *[value] * 8)
        (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 2}))
        return read_adapter_files(folder).digest


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.engine.start()
    yield made
    await made.cache.close()
    await made.engine.close()


async def test_concurrent_uses_share_one_fetch_and_pins_count(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*[bench.cache.hold(AdapterRef(digest=digest, uri="a"), stack) for _ in range(5)])
        assert bench.store.num_downloads == 1
        assert bench.core.inspect().adapter_pins == {digest: 5}
        await bench.cache.hold(AdapterRef(digest=digest, uri="a"), stack)
        assert bench.found() == {"store": 5, "engine": 1}
    assert not bench.core.inspect().adapter_pins


async def test_who_is_cancelled_while_it_pins_leaves_no_pin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine pins between two steps; the request may be gone by then."""
    digest = bench.register("a", 1.0)
    await bench.engine.load_adapter(read_adapter_files(bench.root / "a"))
    may_go_on = threading.Event()
    monkeypatch.setattr(bench.core, "abort", lambda *_: may_go_on.wait())
    bench.engine.abort(RequestKey("any", 0))  # keeps the thread of the steps busy
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(bench.cache.hold(AdapterRef(digest=digest, uri="a"), stack)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        may_go_on.set()
        await tasks[2]
    await bench.cache.close()
    assert not bench.core.inspect().adapter_pins


async def test_one_waiter_that_leaves_does_not_stop_the_fetch(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    bench.store.may_go_on.clear()
    leaving, staying = [asyncio.create_task(bench.cache.fetch(digest, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    bench.store.may_go_on.set()
    assert (await staying).digest == digest
    assert bench.store.num_downloads == 1


async def test_other_bytes_are_refused_and_removed(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    bench.register("b", 2.0)
    with pytest.raises(AdapterMismatch):
        await bench.cache.fetch(digest, "b")
    (bench.root / "a/adapter_model.safetensors").write_bytes(b"junk")
    with pytest.raises(AdapterMismatch):
        await bench.cache.fetch(digest, "a")
    assert list(bench.directory.iterdir()) == []


async def test_outage_spares_what_is_on_disk(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    digest, other = bench.register("a", 1.0), bench.register("b", 2.0)
    await bench.cache.fetch(digest, "a")
    bench.store.error = DependencyDown("the store is down")
    restarted = bench.new_cache()
    assert (await restarted.fetch(digest, "a")).digest == digest
    with pytest.raises(AdapterUnavailable, match="down"):
        await restarted.fetch(other, "b")
    await asyncio.sleep(0)
    assert "the store is down" in caplog.text
    bench.store.error = None
    assert (await restarted.fetch(other, "b")).digest == other


async def test_folder_damaged_on_disk_is_fetched_again(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    files = await bench.cache.fetch(digest, "a")
    weights = files.path / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    restarted = bench.new_cache()
    assert (await restarted.fetch(digest, "a")).digest == digest
    assert read_adapter_files(files.path).digest == digest
    assert bench.store.num_downloads == 2


@pytest.mark.parametrize(("error", "outcome"), [
    (DependencyDown("down"), "adapter_unavailable"),
    (BadRequest("no key", param="uri"), "invalid_request"),
    (ValueError("a bug"), "bug"),
])  # fmt: skip
async def test_every_outcome_is_counted_from_zero_on(bench: Bench, error: Exception, outcome: str) -> None:
    """An alert on a rate sees no rise where the first sample of a series is 1."""
    digest, before = bench.register("a", 1.0), bench.outcomes()
    bench.store.error = error
    with pytest.raises((AdapterUnavailable, BadRequest, ValueError)):
        await bench.cache.fetch(digest, "a")
    assert before[outcome] == 0.0
    assert bench.outcomes() == {**before, outcome: 1.0}


async def test_least_recently_used_goes_first(bench: Bench) -> None:
    digests = [bench.register(name, value) for value, name in enumerate("abc")]
    one_size = sum(file.stat().st_size for file in (bench.root / "a").iterdir())
    bench.max_bytes = 2 * one_size
    cache = bench.new_cache()
    for digest, name in zip(digests[:2], "ab", strict=True):
        await cache.fetch(digest, name)
    await cache.fetch(digests[0], "a")
    await cache.fetch(digests[2], "c")
    assert {path.name for path in bench.directory.iterdir()} == {digests[0], digests[2]}
    assert bench.registry.get_sample_value("stratos_adapter_evictions_total") == 1
    assert bench.registry.get_sample_value("stratos_adapter_disk_bytes") == 2 * one_size


async def test_full_disk_says_what_to_do(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    bench.store.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(AdapterUnavailable, match="no disk space"):
        await bench.cache.fetch(digest, "a")


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64])
async def test_digest_is_a_digest(bench: Bench, digest: str) -> None:
    with pytest.raises(BadRequest):
        await bench.cache.fetch(digest, "a")


async def test_leftovers_of_a_killed_process_are_removed(bench: Bench) -> None:
    digest = bench.register("a", 1.0)
    await bench.cache.fetch(digest, "a")
    (bench.directory / "fetching-1").mkdir()
    remove_leftovers(bench.directory)
    assert [path.name for path in bench.directory.iterdir()] == [digest]


async def test_a_folder_that_is_being_loaded_is_not_evicted(bench: Bench) -> None:
    """The engine reads an adapter's folder while the disk's limit is passed by another one."""
    first, second = bench.register("a", 1.0), bench.register("b", 2.0)
    bench.max_bytes = sum(file.stat().st_size for file in (bench.root / "a").iterdir())
    cache = bench.new_cache()
    is_reading, may_go_on = threading.Event(), threading.Event()
    runner = bench.core.runner
    load = runner.load_adapter

    def slow_load(files: AdapterFiles, *args: Any) -> None:
        if files.digest == first:
            is_reading.set()
            assert may_go_on.wait(20)
            assert read_adapter_files(files.path).digest == first, "the folder is still there, and whole"
        load(files, *args)

    runner.load_adapter = slow_load
    async with AsyncExitStack() as stack:
        held = asyncio.create_task(cache.hold(AdapterRef(digest=first, uri="a"), stack))
        await asyncio.to_thread(is_reading.wait, 20)
        await cache.fetch(second, "b")
        may_go_on.set()
        await held
    await cache.fetch(first, "a")
    await cache.fetch(bench.register("c", 3.0), "c")
    assert not (bench.directory / first).exists(), "no request uses it any more"
    await cache.close()


async def test_uses_and_evictions_at_once_never_break_a_fetch(bench: Bench) -> None:
    names = [f"n{i}" for i in range(6)]
    digests = [bench.register(name, float(i)) for i, name in enumerate(names)]
    bench.max_bytes = 2 * sum(file.stat().st_size for file in (bench.root / "n0").iterdir())
    cache = bench.new_cache()

    async def use(number: int) -> None:
        rng = random.Random(number)
        for _ in range(15):
            index = rng.randrange(len(names))
            async with AsyncExitStack() as stack:
                await cache.hold(AdapterRef(digest=digests[index], uri=names[index]), stack)

    await asyncio.gather(*(use(number) for number in range(4)))
    left = [path.name for path in bench.directory.iterdir() if path.name in digests]
    assert len(left) <= 3
    assert {path.name for path in bench.directory.iterdir()} == set(left), "no half-removed folder stays"
    await cache.close()
