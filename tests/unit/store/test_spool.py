"""The ledger's spool: whole lines or none, through full disks, short writes and deaths."""

from __future__ import annotations

import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest
from stratos.core.ledger.entry import LedgerEntry
from stratos.store.ledger.spool import Spool
from tests.support.worlds.usage_counts import ENTRY


def numbered(*numbers: int) -> list[LedgerEntry]:
    return [replace(ENTRY, request_id=f"gen-{number}") for number in numbers]


def names(spool: Spool, offset: int = 0) -> list[str]:
    return [entry.request_id for entry in spool.read(offset, 1000).entries]


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """A disk on which no file grows beyond this: the write that reaches it is cut short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_entries_stay_over_a_restart_in_a_private_and_bounded_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "spool"
    spool = Spool(path, 2000)
    assert spool.append(numbered(1, 2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(BadRequest, match="another process"):
        Spool(path, 2000)
    assert not spool.append([ENTRY] * 20)
    spool.close()
    again = Spool(path, 2000)
    assert again.append(numbered(3))
    assert (names(again), again.num_torn) == (["gen-1", "gen-2", "gen-3"], 0)
    assert not again.clear(again.num_bytes - 1), "something came since"
    assert again.clear(again.num_bytes)
    assert (again.num_bytes, names(again)) == (0, [])
    again.close()


def test_what_a_full_disk_cuts_short_is_refused_and_taken_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 1 << 20)
    spool.append(numbered(1))
    size = spool.num_bytes
    for room in (0, 1, size // 2, size + size // 2):
        with disk_of(size + room), pytest.raises(OSError, match="File too large"):
            spool.append(numbered(2, 3))
        assert (tmp_path / "spool").stat().st_size == spool.num_bytes == size
    assert spool.append(numbered(4))
    assert names(spool) == ["gen-1", "gen-4"]
    spool.close()


def test_what_a_death_cut_short_is_counted_and_glued_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool(path, 1 << 20)
    spool.append(numbered(1, 2))
    spool.close()
    whole = path.read_bytes()
    line = len(whole) // 2
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Spool(path, 1 << 20)
        assert again.num_torn == int(cut % line > 0)
        again.append(numbered(3))
        assert names(again) == [*["gen-1", "gen-2"][: cut // line], "gen-3"]
        again.close()


def test_it_is_read_in_slices_and_a_spoiled_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool(path, 1 << 20)
    spool.append(numbered(*range(5)))
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 1] = 0
    path.write_bytes(data)
    first = spool.read(0, 2)
    assert ([entry.request_id for entry in first.entries], first.num_unreadable) == (["gen-0"], 1)
    second = spool.read(first.end, 2)
    assert [entry.request_id for entry in second.entries] == ["gen-2", "gen-3"]
    assert names(spool, second.end) == ["gen-4"]
    assert spool.read(spool.num_bytes, 2).entries == []
    spool.close()


def test_a_reader_that_was_left_behind_spoils_no_other(tmp_path: Path) -> None:
    """A process that ends leaves the thread of its last turn, and its very last turn begins another one."""
    spool, found = Spool(tmp_path / "spool", 1 << 24), list[set[str]]()
    spool.append(numbered(*range(4000)))

    def read_all() -> None:
        for _ in range(5):
            found.append({entry.request_id for entry in spool.read(0, 4000).entries})

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(one) == 4000 for one in found)
    spool.close()
