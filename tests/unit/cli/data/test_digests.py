"""A model folder is hashed once by all runs of a data directory, and again when a file of it changed."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from stratos.cli.data import digests
from stratos.cli.data.digests import digest_of, remembered_digest
from stratos.core.files import model_files
from stratos.core.files.model_files import read_model_files
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 8, "max_position_embeddings": 16}')
    (model / "a.safetensors").write_bytes(b"weights")
    return model


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the function that reads the weights."""
    calls, real = [], model_files.files_digest
    monkeypatch.setattr(
        model_files, "files_digest", lambda files, is_over: (calls.append("read"), real(files, is_over))[1]
    )
    monkeypatch.setattr(digests, "SETTLED_S", -1.0)
    return calls


def test_unchanged_weights_are_not_read_again(folder: Path, hashed: list[str], tmp_path: Path) -> None:
    memory = tmp_path / "digests.json"
    first = remembered_digest(folder, memory)
    assert remembered_digest(folder, memory) == first
    assert len(hashed) == 1
    assert read_model_files(folder, first).digest == first.partition("@")[0]
    assert memory.stat().st_mode & 0o777 == 0o600


def test_changed_moved_and_spoilt_ones_are(folder: Path, hashed: list[str], tmp_path: Path) -> None:
    memory = tmp_path / "digests.json"
    first = remembered_digest(folder, memory)
    replaced = folder / "a.safetensors"
    shutil.copy(replaced, folder / "copy")
    (folder / "copy").replace(replaced)  # another inode, the same bytes
    second = remembered_digest(folder, memory)
    assert (len(hashed), second.partition("@")[0]) == (2, first.partition("@")[0])
    replaced.write_bytes(b"WEIGHTS")
    assert remembered_digest(folder, memory).partition("@")[0] != first.partition("@")[0]
    memory.write_text("[1")
    remembered_digest(folder, memory)
    assert len(hashed) == 4


def test_files_that_just_changed_are_not_remembered(
    folder: Path, hashed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", 1000.0)
    remembered_digest(folder, tmp_path / "digests.json")
    remembered_digest(folder, tmp_path / "digests.json")
    assert len(hashed) == 2


async def test_a_digest_is_computed_no_further_than_it_is_wanted(tmp_path: Path) -> None:
    """Its weights are a hole of 140 GB, which takes minutes to read."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(140 << 30)
    task = asyncio.create_task(digest_of(folder, tmp_path / "digests.json"))
    await asyncio.to_thread(wait_until, _is_hashing, "it is read")
    task.cancel()
    await asyncio.wait({task})
    await asyncio.to_thread(wait_until, lambda: not _is_hashing(), "it has ended")


def _is_hashing() -> bool:
    return any(thread.name.startswith("hash") for thread in threading.enumerate())
