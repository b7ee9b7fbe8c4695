"""Backups in a folder: which one is complete, which ones go, and that an altered one is never put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, NotFound
from stratos.store.backups.backup_store import BackupStore
from stratos.store.local_store import LocalStore

DAY_S = 86_400.0


class Crash(Exception):
    """The command is gone."""


class BreaksOff(LocalStore):
    """Dies before the object with this name."""

    breaks_at = ""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root

    async def put(self, key: str, path: Path) -> None:
        if self.breaks_at and key.endswith(self.breaks_at):
            raise Crash
        await super().put(key, path)


@pytest.fixture
def objects(tmp_path: Path) -> BreaksOff:
    (tmp_path / "objects").mkdir()
    return BreaksOff(tmp_path / "objects")


async def write(objects: BreaksOff, day: int, text: str = "one\n") -> str:
    path = objects.root.parent / f"{day}.jsonl"
    path.write_text(text)
    return await BackupStore(objects).write(day * DAY_S, "store", {"records.jsonl": path})


async def test_the_newest_complete_ones_stay(objects: BreaksOff) -> None:
    names = [await write(objects, day) for day in range(1, 6)]
    assert names[0] == "19700102T000000Z"
    store = BackupStore(objects)
    assert await store.prune(2) == names[:3]
    assert [(folder.name, folder.is_complete) for folder in await store.folders()] == [(n, True) for n in names[3:]]
    assert await store.prune(2) == []


@pytest.mark.parametrize("breaks_at", ["records.jsonl", "backup.json"])
async def test_one_that_broke_off_is_no_backup_and_goes_with_the_next(
    objects: BreaksOff, tmp_path: Path, breaks_at: str
) -> None:
    first, store = await write(objects, 1), BackupStore(objects)
    objects.breaks_at = breaks_at
    with pytest.raises(Crash):
        await write(objects, 2, "two\n")
    objects.breaks_at = ""
    assert await store.prune(1) == []
    assert (await store.fetch("latest", tmp_path)).store_id == "store"
    assert (tmp_path / "records.jsonl").read_text() == "one\n"
    broken = [folder.name for folder in await store.folders() if not folder.is_complete]
    assert len(broken) == (breaks_at == "backup.json")
    third = await write(objects, 3)
    assert await store.prune(2) == broken
    assert [folder.name for folder in await store.folders()] == [first, third]


async def test_many_that_broke_off_hide_none_that_is_whole(objects: BreaksOff, tmp_path: Path) -> None:
    """The defect: a folder of more than 256 objects was not listed, so nothing was put back and nothing removed."""
    for number in range(257):
        folder = objects.root / f"backups/19700101T{number:06}Z"
        folder.mkdir(parents=True)
        (folder / "records.jsonl").touch()
    name, store = await write(objects, 2), BackupStore(objects)
    assert (await store.fetch("latest", tmp_path)).store_id == "store"
    assert len(await store.prune(1)) == 257
    assert [folder.name for folder in await store.folders()] == [name]


@pytest.mark.parametrize(("file", "text"), [("records.jsonl", "two\n"), ("records.jsonl", ""), ("backup.json", "{")])
async def test_an_altered_one_is_refused(objects: BreaksOff, tmp_path: Path, file: str, text: str) -> None:
    name = await write(objects, 1)
    (tmp_path / "objects/backups" / name / file).write_text(text)
    with pytest.raises(BadRequest):
        await BackupStore(objects).fetch(name, tmp_path)


async def test_an_unknown_one_is_refused_with_those_that_are_there(objects: BreaksOff, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none"):
        await BackupStore(objects).fetch("latest", tmp_path)
    name = await write(objects, 1)
    with pytest.raises(NotFound, match=name):
        await BackupStore(objects).fetch("../x", tmp_path)
