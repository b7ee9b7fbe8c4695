"""Models that a node's processes share: streamed and checked, fetched once, resumed, bounded, never removed in use."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratos.common.errors import DependencyDown, InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.store.local_store import LocalStore
from stratos.store.object_store import ObjectInfo
from stratos.store.registry import fetching, node_cache
from stratos.store.registry.catalogue import PublishedModel, parse_reference
from stratos.store.registry.fetching import FetchWork, fetch_files
from stratos.store.registry.manifest import CHUNK_BYTES, PublishedFile, chunk_key
from stratos.store.registry.node_cache import NodeCache
from tests.support.promises import Promised
from tests.support.reference.published_models import DRAFT, published, save_large_model
from tests.support.reference.second_model import save_second_model
from tests.support.waiting import eventually


class LinkStore(LocalStore):
    """A store behind a link: bytes come at a rate, each answer after a latency; reads may fail."""

    def __init__(self, root: Path, bytes_per_s: float = 0.0, latency_s: float = 0.0) -> None:
        super().__init__(root)
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self.num_read = 0
        self.failing: set[int] = set()
        self.lost: set[tuple[str, int]] = set()
        self.num_reads = 0
        self._free_at = 0.0

    async def read(self, key: str, offset: int, num_bytes: int) -> bytes:
        self.num_reads += 1
        if self.num_reads in self.failing or (key, offset) in self.lost:
            raise DependencyDown("the store is away")
        part = await super().read(key, offset, num_bytes)
        self.num_read += len(part)
        if self.bytes_per_s:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + len(part) / self.bytes_per_s
            await asyncio.sleep(self._free_at - now + self.latency_s)
        return part


@pytest.fixture
def store(tmp_path: Path) -> LinkStore:
    (tmp_path / "objects").mkdir()
    return LinkStore(tmp_path / "objects")


@pytest.fixture(scope="module")
def large_objects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PublishedModel]:
    """A store with a model of several chunks, which tests link: 35 MB are written once."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "objects").mkdir()
    model = save_large_model(folder / "model")
    return folder / "objects", asyncio.run(published(LocalStore(folder / "objects"), model, "large"))


@pytest.fixture
def large(store: LinkStore, large_objects: tuple[Path, PublishedModel], tmp_path: Path) -> PublishedModel:
    shutil.copytree(large_objects[0], tmp_path / "objects", copy_function=os.link, dirs_exist_ok=True)
    return large_objects[1]


def _weights(model: PublishedModel) -> PublishedFile:
    return next(file for file in model.manifest.files if file.name == "model.safetensors")


async def test_a_model_comes_whole_with_a_digest_that_no_process_computes_again(
    store: LinkStore, tmp_path: Path
) -> None:
    made, cache = await published(store), NodeCache(tmp_path / "cache")
    async with cache.model(store, made.manifest) as model:
        there = {path.name: path.read_bytes() for path in model.path.iterdir() if not path.name.startswith(".")}
        assert there == {path.name: path.read_bytes() for path in DRAFT.iterdir()}
        (model.path / "model.safetensors").chmod(0)  # what is handed over is believed while files are the same
        (model.path / "model.safetensors").chmod(0o644)
        assert read_model_files(model.path, model.handed_digest).digest == made.manifest.digest
    store.num_read = 0
    async with NodeCache(tmp_path / "cache").model(store, made.manifest):
        assert store.num_read == 0


async def test_several_that_want_a_model_fetch_it_once(store: LinkStore, large: PublishedModel, tmp_path: Path) -> None:
    async def use() -> int:
        work = FetchWork()
        async with NodeCache(tmp_path / "cache").model(store, large.manifest, work) as model:
            assert (model.path / "model.safetensors").stat().st_size == CHUNK_BYTES + (1 << 20)
        return work.num_fetched_bytes

    fetched = await asyncio.gather(*(use() for _ in range(4)))
    assert sorted(fetched) == [0, 0, 0, large.manifest.num_bytes]


async def test_a_store_that_fails_in_the_middle_is_asked_again_for_what_lacks(
    store: LinkStore, large: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.0)
    store.failing = {store.num_reads + i for i in (2, 3, 9, 10, 11, 13)}
    work = FetchWork()
    async with NodeCache(tmp_path / "cache").model(store, large.manifest, work) as model:
        assert read_model_files(model.path).digest == large.manifest.digest
    assert (work.num_failures, work.num_fetched_bytes) == (6, large.manifest.num_bytes)  # no byte came twice


async def test_a_fetch_that_was_given_up_goes_on_with_the_chunks_that_are_whole(
    store: LinkStore, large: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.01)
    cache, weights = NodeCache(tmp_path / "cache"), _weights(large)
    store.lost = {(chunk_key(weights.chunks[0]), 16 << 20)}
    with pytest.raises(DependencyDown, match="is away"):
        async with cache.model(store, large.manifest, FetchWork(patience_s=0.5)):
            pass
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")] == []
    store.lost = set()
    work = FetchWork()
    [part] = (tmp_path / "cache").glob(".*.part")
    noted = (part / fetching.NOTES_NAME).read_text(encoding="utf-8").splitlines()
    assert "model.safetensors\t1" in noted
    with (part / "tokenizer.json").open("r+b") as file:  # noted, and damaged since
        file.write(b"?")
    async with cache.model(store, large.manifest, work) as model:
        assert read_model_files(model.path).digest == large.manifest.digest
    assert work.num_kept_bytes > 0
    assert work.num_kept_bytes + work.num_fetched_bytes == large.manifest.num_bytes


async def test_a_process_that_is_killed_while_it_fetches_leaves_no_lock_and_all_chunks_that_were_whole(
    store: LinkStore, large: PublishedModel, tmp_path: Path
) -> None:
    cache, weights = NodeCache(tmp_path / "cache"), _weights(large)
    child = os.fork()
    if not child:
        store.lost = {(chunk_key(weights.chunks[0]), 16 << 20)}  # so it never ends by itself
        with contextlib.suppress(BaseException):
            asyncio.run(cache.hold(store, large.manifest, FetchWork(patience_s=300)))
        os._exit(1)
    part = tmp_path / "cache" / f".{large.manifest.digest}-{large.manifest.text_digest[:16]}.part"
    notes = part / fetching.NOTES_NAME
    try:
        await eventually(lambda: notes.exists() and "model.safetensors\t1" in notes.read_text(), "a chunk is whole")
        waiting = asyncio.create_task(cache.hold(store, large.manifest))
        await eventually(lambda: not waiting.done(), "another process has the lock")
    finally:
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, child, 0)
    with contextlib.closing(await waiting) as model:
        assert read_model_files(model.path).digest == large.manifest.digest
    assert store.num_read <= large.manifest.num_bytes - (1 << 20)  # the second chunk came once


async def test_bytes_that_are_not_what_was_published_never_appear(
    store: LinkStore, large: PublishedModel, tmp_path: Path
) -> None:
    weights = _weights(large)
    path = tmp_path / "objects" / chunk_key(weights.chunks[1])
    right = path.read_bytes()
    cache = NodeCache(tmp_path / "cache")
    for wrong in (b"?" + right[1:], right[:-1]):
        path.unlink()
        path.write_bytes(wrong)
        with pytest.raises(InvalidCheckpoint, match=r"chunk 1 of model\.safetensors .* is not what was published"):
            async with cache.model(store, large.manifest):
                pass
    path.unlink()
    with pytest.raises(InvalidCheckpoint, match="lacks the chunk"):
        async with cache.model(store, large.manifest):
            pass
    path.write_bytes(right)
    async with cache.model(store, large.manifest) as model:
        assert read_model_files(model.path).digest == large.manifest.digest


async def test_what_changed_in_the_cache_is_fetched_again(store: LinkStore, tmp_path: Path) -> None:
    made, cache = await published(store), NodeCache(tmp_path / "cache")
    for name in ("model.safetensors", "chat_template.jinja"):
        async with cache.model(store, made.manifest) as model:
            path = model.path / name
        path.write_bytes(b"x" * path.stat().st_size)
        async with cache.model(store, made.manifest) as model:
            assert path.read_bytes() == (DRAFT / name).read_bytes()


async def test_the_least_recently_used_that_is_not_in_use_makes_room(store: LinkStore, tmp_path: Path) -> None:
    first, second = await published(store), await published(store, save_second_model(tmp_path / "second"), "second")
    third = save_second_model(tmp_path / "third")
    config = (third / "config.json").read_text(encoding="utf-8")
    (third / "config.json").write_text(config.replace("512", "256"), encoding="utf-8")
    last = await published(store, third, "third")
    folder = tmp_path / "cache"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "file").write_bytes(b"stays")
    max_bytes = first.manifest.num_bytes + second.manifest.num_bytes + 10_000
    cache = NodeCache(folder, max_bytes)

    def names() -> set[str]:
        return {path.name.split("-")[0] for path in folder.iterdir() if not path.name.startswith(".")}

    async with AsyncExitStack() as held:
        used = await held.enter_async_context(cache.model(store, first.manifest))
        async with cache.model(store, second.manifest):
            os.utime(next(folder.glob(f".{first.manifest.digest}*.lock")), (0, 0))  # older than the second one
        async with NodeCache(folder, max_bytes).model(store, last.manifest):
            assert names() == {"mine", first.manifest.digest, last.manifest.digest}
            with pytest.raises(DependencyDown, match=r"bytes; .* are of models in use"):
                async with cache.model(store, second.manifest):
                    pass
        assert used.path.is_dir()
    async with cache.model(store, second.manifest):
        assert names() == {"mine", second.manifest.digest, last.manifest.digest}


async def test_a_full_disk_is_said_before_and_in_the_middle_and_nothing_is_left(
    store: LinkStore, large: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, usage = NodeCache(tmp_path / "cache"), {"free": 1000}
    monkeypatch.setattr(node_cache.shutil, "disk_usage", lambda path: SimpleNamespace(**usage))
    with pytest.raises(DependencyDown, match="no disk space for"):
        async with cache.model(store, large.manifest):
            pass
    usage["free"] = 1 << 40

    def full(*args: object) -> int:
        usage["free"] = 0
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(fetching.os, "pwrite", full)
    with pytest.raises(DependencyDown, match="no disk space is left in"):
        async with cache.model(store, large.manifest):
            pass
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


async def test_a_folder_that_cannot_be_used_is_an_error_that_says_so(store: LinkStore, tmp_path: Path) -> None:
    made = await published(store)
    (tmp_path / "cache" / ".room.lock").mkdir(parents=True)
    with pytest.raises(DependencyDown, match="cannot be written"):
        await NodeCache(tmp_path / "cache").hold(store, made.manifest)


async def test_while_the_store_is_away_no_other_words_are_taken_for_those_that_are_meant(
    store: LinkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, cache = tmp_path / "other", NodeCache(tmp_path / "cache")
    shutil.copytree(DRAFT, other)
    (other / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    made = await published(store)
    reference = parse_reference(made.reference)
    (await cache.hold(store, made.manifest)).close()

    async def away(folder: str) -> list[ObjectInfo]:
        raise DependencyDown("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "list_folder", away)
        (await cache.hold_reference(store, reference)).close()
    (await cache.hold(store, (await published(store, other, "other")).manifest)).close()
    monkeypatch.setattr(store, "list_folder", away)
    with pytest.raises(DependencyDown, match="the store is away"):
        await cache.hold_reference(store, reference)


async def test_a_start_takes_hardly_longer_than_the_link(
    store: LinkStore, large: PublishedModel, tmp_path: Path, promised: Promised
) -> None:
    bytes_per_s = store.bytes_per_s = 25e6
    store.latency_s = 0.02
    with promised("a model is there at 0.8 of the link's rate", large.manifest.num_bytes / bytes_per_s / 0.8):
        async with NodeCache(tmp_path / "cache").model(store, large.manifest) as held:
            pass
    assert (held.path / "config.json").is_file()


async def test_words_alone_are_fetched_without_weights(store: LinkStore, large: PublishedModel, tmp_path: Path) -> None:
    await fetch_files(store, large.manifest, tmp_path / "words", FetchWork(), names=["config.json", "tokenizer.json"])
    assert sorted(path.name for path in (tmp_path / "words").iterdir()) == ["config.json", "tokenizer.json"]
