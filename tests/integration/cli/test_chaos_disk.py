"""``corrupt-disk``, aimed at files of the test's own, and the reasons by which its proof reads a worker's counts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stratos.cli.chaos.faults import disk_tier
from stratos.cli.chaos.faults.contract import NoEffect
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess
from tests.support.chaos.victim import cancelled
from tests.support.waiting import LIMIT_S

CONTENT = bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "PAUSE_S", 0.001)


def files(folder: Path, *names: str) -> list[Path]:
    paths = [folder / "layout" / "tenant" / f"{name}.kv" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    return paths


async def test_files_are_damaged_once_by_turns_and_so_are_those_that_come_later(tmp_path: Path) -> None:
    flipped, cut, removed = files(tmp_path, "a", "b", "c")
    other = tmp_path / "layout" / "tenant" / "d.new"
    other.write_bytes(CONTENT)
    counts, rounds, in_effect = iter([1.0, 4.0]), [0], asyncio.Event()

    class Look(asyncio.Event):
        def set(self) -> None:
            rounds[0] += 1
            if rounds[0] == 1:
                files(tmp_path, "e")
            if rounds[0] == 4:
                in_effect.set()

    place = OneProcess(os.getpid(), counts.__next__, kv=tmp_path)
    strike = asyncio.ensure_future(Fault("corrupt-disk", "victim", lasting_s=600).strike(place, Look()))
    await asyncio.wait_for(in_effect.wait(), LIMIT_S)
    await cancelled(strike)
    for path in (flipped, tmp_path / "layout" / "tenant" / "e.kv"):
        differing = [a ^ b for a, b in zip(path.read_bytes(), CONTENT, strict=True) if a != b]
        assert len(differing) == 1
        assert differing[0].bit_count() == 1, "once, though the fault went on"
    assert 0 < cut.stat().st_size < len(CONTENT)
    assert not removed.exists()
    assert other.read_bytes() == CONTENT


async def test_a_file_that_is_written_again_is_damaged_again(tmp_path: Path) -> None:
    """A file system may give the inode of a file that was removed to the next one of its name."""
    (path,) = files(tmp_path, "a")
    inode, rounds, in_effect = path.stat().st_ino, [0], asyncio.Event()

    class Look(asyncio.Event):
        def set(self) -> None:
            rounds[0] += 1
            if rounds[0] == 1:
                assert path.read_bytes() != CONTENT
                path.write_bytes(CONTENT)
            if rounds[0] == 3:
                in_effect.set()

    place = OneProcess(os.getpid(), iter([1.0, 4.0]).__next__, kv=tmp_path)
    strike = asyncio.ensure_future(Fault("corrupt-disk", "victim", lasting_s=600).strike(place, Look()))
    await asyncio.wait_for(in_effect.wait(), LIMIT_S)
    await cancelled(strike)
    assert path.stat().st_ino == inode
    assert path.read_bytes() != CONTENT


async def test_the_proof_counts_files_and_what_the_worker_refused(tmp_path: Path) -> None:
    files(tmp_path, "a", "b", "c", "d")
    place = OneProcess(os.getpid(), iter([1.0, 4.0]).__next__, kv=tmp_path)
    proof = await Fault("corrupt-disk", "victim", lasting_s=0).strike(place, asyncio.Event())
    assert proof == {"pid": os.getpid(), "flipped": 2, "cut": 1, "removed": 1, "refused_blocks": 3}


@pytest.mark.parametrize(
    ("names", "counts", "match"),
    [((), [1.0, 4.0], "so no file was damaged"), (("a",), [4.0, 4.0], "1 files were damaged, but victim loaded none")],
)
async def test_without_files_or_without_a_refusal_there_was_no_effect(
    tmp_path: Path, names: tuple[str, ...], counts: list[float], match: str
) -> None:
    files(tmp_path, *names)
    place = OneProcess(os.getpid(), iter(counts).__next__, kv=tmp_path)
    with pytest.raises(NoEffect, match=match):
        await Fault("corrupt-disk", "victim", lasting_s=0).strike(place, asyncio.Event())
