"""The platform key of a data directory: made once, for its owner alone."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from stratos.cli.data.credentials import load_credentials, load_platform_key
from stratos.cli.data.folder import DataDir
from stratos.common.errors import BadRequest
from stratos.store.data_keys import parse_platform_key


def test_a_platform_key_is_made_once_with_mode_0600_and_is_in_no_other_file(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    load_credentials(data)
    key = load_platform_key(data)
    assert len(parse_platform_key(key)) == 32
    assert load_platform_key(data) == key
    assert stat.S_IMODE(data.platform_key_file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if key in path.read_text()] == ["platform.key"]


def test_a_key_that_could_not_be_written_whole_is_made_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(BadRequest, match="No space left"):
            load_platform_key(data)
    assert list(tmp_path.iterdir()) == []
    assert len(parse_platform_key(load_platform_key(data))) == 32


def test_of_two_first_calls_at_a_time_both_have_the_key_of_the_quicker_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, keys, sync = DataDir(tmp_path), list[str](), os.fsync

    def call_between(descriptor: int) -> None:
        sync(descriptor)
        monkeypatch.setattr(os, "fsync", sync)
        keys.append(load_platform_key(data))

    monkeypatch.setattr(os, "fsync", call_between)
    keys.append(load_platform_key(data))
    assert keys[0] == keys[1]
    assert [path.name for path in tmp_path.iterdir()] == ["platform.key"]


def test_one_that_others_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    load_platform_key(data)
    data.platform_key_file.chmod(0o640)
    with pytest.raises(BadRequest, match="0600"):
        load_platform_key(data)
    data.platform_key_file.chmod(0o600)
    data.platform_key_file.write_text("short")
    with pytest.raises(BadRequest, match="32 bytes"):
        load_platform_key(data)
