"""Discovery: what is understood, what is refused, and what a broken file does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stratos.common.clock import FakeClock
from stratos.core.placement import WorkerRole
from stratos.routing.fleet_state import Member
from stratos.rpc.clients.name_lookup import NoSuchName, Resolve
from stratos_router.discovery import (
    DnsDiscovery,
    FileDiscovery,
    FolderDiscovery,
    InvalidDiscovery,
    PolledDiscovery,
    open_discovery,
    parse_members,
)

ENTRY = {"worker_id": "decode-0", "address": "127.0.0.1:1234", "role": "decode"}
MEMBER = Member("decode-0", "127.0.0.1:1234", WorkerRole.DECODE)


def replace_with(path: Path, text: str) -> None:
    staged = path.with_suffix(".tmp")
    staged.write_text(text)
    staged.replace(path)


def open_file_discovery(setting: str) -> PolledDiscovery:
    source = open_discovery(setting, FakeClock())
    assert isinstance(source, PolledDiscovery)
    return source


def test_static_lists() -> None:
    found = asyncio.run(open_discovery("static://decode@a:1, prefill@[::1]:2", FakeClock()).members(lambda _: False))
    assert found == (Member("a:1", "a:1", WorkerRole.DECODE), Member("[::1]:2", "[::1]:2", WorkerRole.PREFILL))


@pytest.mark.parametrize(
    "setting",
    ["", "workers.json", "http://host/x", "file://", "file://host/x", "static://a:1", "static://router@a:1",
     "dns://", "dns://router@a:1", "dns://a:1", "static://decode@a", "static://decode@a:0", "static://decode@a:99999", "static://decode@a:1,decode@a:1"],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(setting) -> None:
    with pytest.raises(InvalidDiscovery):
        open_discovery(setting, FakeClock())


@pytest.mark.parametrize(
    "document",
    [{}, [1], [{}], [{**ENTRY, "role": "router"}], [{**ENTRY, "address": "nowhere"}], [{**ENTRY, "worker_id": ""}],
     [{**ENTRY, "worker_id": 3}], [ENTRY, ENTRY]],
)  # fmt: skip
def test_malformed_documents_are_refused(document) -> None:
    with pytest.raises(InvalidDiscovery):
        parse_members(document)


def test_unknown_keys_are_ignored() -> None:
    assert parse_members([{**ENTRY, "pid": 1}]) == (MEMBER,)


def test_a_file_is_read_when_it_appears_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    source = open_file_discovery(f"file://{path}")
    assert source.poll() == ()
    assert "does not exist" in source.problem
    replace_with(path, json.dumps([ENTRY]))
    assert source.poll() == (MEMBER,)
    assert source.problem == ""
    # same size, same modification time: only the inode tells
    stat = path.stat()
    replace_with(path, json.dumps([{**ENTRY, "worker_id": "decode-1"}]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [member.worker_id for member in source.poll()] == ["decode-1"]
    replace_with(path, "[]")
    assert source.poll() == ()


def test_a_folder_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    source = FolderDiscovery(tmp_path)
    replace_with(tmp_path / "a.json", json.dumps([ENTRY]))
    source.poll()
    assert source.unchanged() is None, "what comes in the same moment may have the same time"
    old_s = tmp_path.stat().st_mtime - 60
    os.utime(tmp_path, (old_s, old_s))
    source.poll()
    assert source.unchanged() == (MEMBER,)
    replace_with(tmp_path / "a.json", json.dumps([{**ENTRY, "address": "other:1"}]))
    assert source.unchanged() is None
    os.utime(tmp_path, (old_s, old_s))
    assert source.unchanged() is None, "the file is another one"


def test_a_folder_is_the_sum_of_its_files(tmp_path: Path) -> None:
    source = open_file_discovery(f"folder://{tmp_path}")
    assert source.poll() == ()
    assert "no file yet" in source.problem
    replace_with(tmp_path / "b.json", json.dumps([{**ENTRY, "worker_id": "sim-0"}, {**ENTRY, "address": "other:1"}]))
    replace_with(tmp_path / "a.json", json.dumps([ENTRY]))
    (tmp_path / ".c.json.7").write_text("half-writ")
    assert {member.worker_id: member.address for member in source.poll()} == {
        MEMBER.worker_id: MEMBER.address,  # the first file's, not "other:1"
        "sim-0": MEMBER.address,
    }
    assert source.problem == ""
    replace_with(tmp_path / "a.json", "[{")
    assert MEMBER in source.poll()
    (tmp_path / "a.json").unlink()
    assert [member.address for member in source.poll()] == [MEMBER.address, "other:1"]


@pytest.mark.parametrize("text", ["", "[{", "{}", "[" * 100_000, '[{"worker_id": 1}]', "\x00\xff"])
def test_a_broken_file_keeps_the_last_good_list_and_is_reported_once(tmp_path: Path, caplog, text) -> None:
    path = tmp_path / "workers.json"
    replace_with(path, json.dumps([ENTRY]))
    source = FileDiscovery(path)
    source.poll()
    with caplog.at_level(logging.WARNING):
        replace_with(path, text)
        assert [source.poll() for _ in range(3)] == [(MEMBER,)] * 3
        assert len(caplog.records) == 1
        assert "keeping the last good list" in caplog.text
        path.unlink()
        assert source.poll() == (MEMBER,)
    replace_with(path, "[]")
    assert source.poll() == ()
    assert source.problem == ""


async def test_names_of_several_pools_stand_for_all_their_addresses() -> None:
    pods = {"small": ["10.0.0.1"], "large": ["10.0.0.2", "10.0.0.1"], "prefill": ["10.0.0.3"]}
    source = DnsDiscovery("decode@small:5, prefill@prefill:5, decode@large:5", FakeClock(), resolver(pods))
    assert await source.members(lambda _: False) == (
        Member("10.0.0.1:5", "10.0.0.1:5", WorkerRole.DECODE, is_named=False),
        Member("10.0.0.2:5", "10.0.0.2:5", WorkerRole.DECODE, is_named=False),
        Member("10.0.0.3:5", "10.0.0.3:5", WorkerRole.PREFILL, is_named=False),
    )
    assert source.problem == ""


async def test_an_answer_without_addresses_is_a_list_and_no_answer_is_none() -> None:
    pods: dict[str, list[str] | None] = {"pool": None}
    source = DnsDiscovery("decode@pool:5", FakeClock(), resolver(pods))
    assert await source.members(lambda _: False) == ()
    assert "pool" in source.problem
    del pods["pool"]
    assert await source.members(lambda _: False) == ()
    assert source.problem == ""
    pods["pool"] = ["10.0.0.1"]
    members = await source.members(lambda _: False)
    assert len(members) == 1
    for pods["pool"] in ([], None):
        assert await source.members(lambda _: False) == members


def resolver(pods: Mapping[str, list[str] | None]) -> Resolve:
    async def resolve(host: str, port: int) -> Sequence[str]:
        found = pods.get(host, [])
        if found is None:
            raise OSError("no answer")
        if not found:
            raise NoSuchName(host)
        return found

    return resolve


def test_a_file_that_cannot_even_be_looked_at_keeps_the_last_list(tmp_path: Path) -> None:
    """As on a mount that fails, or below a folder that this process may not enter any more."""
    folder, broken = tmp_path / "mount", tmp_path / "mount" / "workers.json"
    never = FileDiscovery(broken)
    folder.write_text("no folder")
    assert (never.poll(), bool(never.problem)) == ((), True)
    folder.unlink()
    folder.mkdir()
    replace_with(broken, json.dumps([ENTRY]))
    source = FileDiscovery(broken)
    assert source.poll() == (MEMBER,)
    broken.unlink()
    folder.rmdir()
    folder.write_text("no folder")
    assert source.poll() == (MEMBER,)


def test_a_folder_that_is_away_keeps_the_last_list_and_a_file_that_left_it_does_not(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "mount", tmp_path / "elsewhere"
    folder.mkdir()
    replace_with(folder / "one.json", json.dumps([ENTRY]))
    replace_with(folder / "two.json", json.dumps([{**ENTRY, "worker_id": "decode-1"}]))
    source = open_file_discovery(f"folder://{folder}")
    assert len(source.poll()) == 2
    folder.rename(elsewhere)
    assert len(source.poll()) == 2
    elsewhere.rename(folder)
    (folder / "two.json").unlink()
    assert source.poll() == (MEMBER,)
