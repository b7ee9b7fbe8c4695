"""The manifest in an object store: what cannot be read is told, and takes no room on the reader's own disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from stratos.common.errors import DependencyDown
from stratos.store.local_store import LocalStore
from stratos.store.records.manifest import MANIFEST_KEY, ManifestStore


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"format": 2}', "[]", "", "x" * 100])
async def test_one_that_cannot_be_read_is_a_dependency_down(
    objects: LocalStore, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: one that was too large, or too deep, ended the task that keeps it, and so the registry."""
    monkeypatch.setattr("stratos.store.records.manifest._MAX_BYTES", 99 if content.startswith("x") else 1 << 20)
    await objects.put(MANIFEST_KEY, content.encode())
    with pytest.raises(DependencyDown, match="manifest"):
        await ManifestStore(objects).read()


async def test_reading_it_needs_no_room_of_this_machine(objects: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a full disk ended the registry, again and again."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert await ManifestStore(objects).read() is None
    await ManifestStore(objects).add("store-1", [])
    found = await ManifestStore(objects).read()
    assert found is not None
    assert found.store_id == "store-1"
