"""What gateways read of a model: kept by its digest, checked before it is used, without any weights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from stratos.common.errors import NotFound
from stratos.core.files.model_texts import text_digest
from stratos.store.local_store import LocalStore
from stratos.store.models.texts import FOLDER, AlteredWords, TextFolders, put_texts
from tests.support.paths import MODELS

MODEL = MODELS / "draft"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "objects").mkdir()
    return LocalStore(tmp_path / "objects")


async def test_words_are_stored_without_weights_and_come_back_under_their_digest(
    store: LocalStore, tmp_path: Path
) -> None:
    digest = await put_texts(store, MODEL)
    names = {info.key.rpartition("/")[2] for info in await store.list_folder(f"{FOLDER}/{digest}")}
    assert {"config.json", "tokenizer.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)
    folders = TextFolders(store, tmp_path / "kept")
    found = await folders.fetch(digest)
    assert text_digest(found) == digest == text_digest(MODEL)
    shutil.rmtree(tmp_path / "objects" / FOLDER)
    assert await folders.fetch(digest) == found
    await folders.keep({digest})
    assert found.is_dir()
    left = found.with_name(f".{digest}.abc")  # of a process that was killed while it fetched
    left.mkdir()
    await folders.keep(set())
    assert list((tmp_path / "kept").iterdir()) == []


async def test_altered_words_are_never_used_and_damaged_ones_on_the_disk_are_fetched_again(
    store: LocalStore, tmp_path: Path
) -> None:
    digest, folders = await put_texts(store, MODEL), TextFolders(store, tmp_path / "kept")
    found = await folders.fetch(digest)
    (found / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert text_digest(await folders.fetch(digest)) == digest
    (tmp_path / "objects" / FOLDER / digest / "config.json").write_text("{}", encoding="utf-8")
    shutil.rmtree(found)
    with pytest.raises(AlteredWords, match="have another digest"):
        await folders.fetch(digest)
    assert not found.exists()
    with pytest.raises(NotFound):
        await folders.fetch("0" * 64)


class CountingStore(LocalStore):
    """Says how often a folder was downloaded."""

    num_downloads = 0

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = 1 << 30
    ) -> None:
        self.num_downloads += 1
        await super().download_folder(folder, destination, names=names, max_bytes=max_bytes)


async def test_words_of_two_revisions_at_once_are_fetched_once_and_none_deletes_what_the_other_reads(
    store: LocalStore, tmp_path: Path
) -> None:
    digest, counting = await put_texts(store, MODEL), CountingStore(tmp_path / "objects")
    folders = TextFolders(counting, tmp_path / "kept")
    found = await asyncio.gather(*(folders.fetch(digest) for _ in range(3)))
    assert {text_digest(path) for path in found} == {digest}
    assert counting.num_downloads == 1
