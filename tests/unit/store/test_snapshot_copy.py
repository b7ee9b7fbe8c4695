"""Copies that two threads write at a time, as at a process' end, and copies that a newer version has made."""

from __future__ import annotations

import threading
from pathlib import Path

from stratos.store.records.record import Kind, Record
from stratos.store.records.snapshot_copy import SnapshotCopy, dump_copy, load_copy, parse_copy, save_copy


def a_copy(revision: int) -> SnapshotCopy:
    body = '{"schema": 1, "deleted": true, "value": {}}'
    records = [
        Record(kind=Kind.TENANT, id=f"t{number}", version=1, is_deleted=True, text=f"1 {body}")
        for number in range(revision)
    ]
    return SnapshotCopy(store_id="s", revision=revision, confirmed_unix_s=1.0, records=records)


def test_a_writer_that_was_left_behind_spoils_no_copy(tmp_path: Path) -> None:
    path, found, failures = tmp_path / "copy", list[int](), list[BaseException]()

    def write(revision: int) -> None:
        try:
            for _ in range(30):
                save_copy(a_copy(revision), path)
                copy = load_copy(path)
                assert copy is not None
                found.append(len(copy.records))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(revision,)) for revision in (300, 1500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(found) <= {300, 1500}


def test_a_record_of_a_kind_that_only_a_newer_version_knows_is_skipped() -> None:
    head, first, *others = dump_copy(a_copy(3)).decode().splitlines()
    newer = first.replace('"tenant"', '"of-a-newer-version"')
    found = parse_copy("\n".join([head, newer, *others]).encode())
    assert [record.id for record in found.records] == ["t1", "t2"]
