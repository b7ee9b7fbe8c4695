"""The data directory: private files, living runs, remains of killed ones."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratos.cli.data.credentials import Credentials, load_credentials, save_credentials
from stratos.cli.data.folder import DataDir, try_lock, write_json_atomically
from stratos.common.errors import BadRequest, DependencyDown


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.prepare()
    return data


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_credentials_are_private_and_last(data: DataDir) -> None:
    first = load_credentials(data)
    assert len(first.pepper) >= 32
    assert first.api_key == ""
    save_credentials(data, Credentials(pepper=first.pepper, api_key="sk-x"))
    assert load_credentials(data) == Credentials(pepper=first.pepper, api_key="sk-x")
    assert mode_of(data.credentials_file) == 0o600
    assert mode_of(data.path) == 0o700
    assert first.pepper not in repr(first)


def test_threads_of_a_process_write_the_same_file_at_once(data: DataDir) -> None:
    path = data.path / "file.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_json_atomically(path, [n] * 1_000), range(200)))
    assert len(set(json.loads(path.read_text()))) == 1
    assert [entry.name for entry in data.path.glob(".file.json*")] == []


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pepper": 1'])
def test_broken_credentials_say_what_to_do(data: DataDir, content: str) -> None:
    data.credentials_file.write_text(content)
    with pytest.raises(BadRequest, match="delete it"):
        load_credentials(data)


def test_a_living_run_is_found_and_kept(data: DataDir) -> None:
    run = data.new_run()
    write_json_atomically(run.platform_file, {"run_id": run.run_id})
    other = data.new_run()
    assert run.path.is_dir()
    assert [r["run_id"] for r in data.living_runs()] == [run.run_id]
    for each in (run, other):
        each.remove()
    assert list(data.living_runs()) == []
    assert not list((data.path / "run").iterdir())
    assert not run.shm_path.exists()


def test_the_remains_of_a_killed_run_are_swept(data: DataDir) -> None:
    run = data.new_run()
    (run.shm_path / "ring").write_bytes(b"x")
    for lock in run._locks:
        lock.close()  # what the kernel does when the process dies
    successor = data.new_run()
    assert not run.path.exists()
    assert not run.shm_path.exists()
    successor.remove()


def test_the_memory_of_a_killed_run_is_swept_by_any_data_directory(data: DataDir, tmp_path: Path) -> None:
    run, living = data.new_run(), data.new_run()
    for lock in run._locks:
        lock.close()
    shutil.rmtree(data.path / "run" / run.run_id)
    elsewhere = DataDir(tmp_path / "elsewhere")
    elsewhere.prepare()
    other = elsewhere.new_run()
    assert not run.shm_path.exists()
    assert living.shm_path.exists()
    for each in (living, other):
        each.remove()


def test_logs_of_a_failed_run_stay_until_the_next_start(data: DataDir) -> None:
    run = data.new_run()
    run.log_path("gateway").write_text("why")
    run.workers_file.write_text("[]")
    run.remove(keep_logs=True)
    assert run.log_path("gateway").read_text() == "why"
    assert not run.workers_file.exists()
    data.new_run().remove()
    assert not run.path.exists()


def test_locks_are_exclusive_and_end_with_the_file(tmp_path: Path) -> None:
    held = try_lock(tmp_path / "lock")
    assert held is not None
    assert try_lock(tmp_path / "lock") is None
    held.close()
    again = try_lock(tmp_path / "lock")
    assert again is not None
    again.close()


def test_a_full_disk_is_explained(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(DependencyDown, match=r"5 MB are free.*free some space"):
        data.prepare()


def test_an_interrupted_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "workers.json"
    write_json_atomically(path, [1])

    def broken(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        write_json_atomically(path, [1, 2])
    assert path.read_text() == "[1]"
    assert mode_of(path) == 0o600
    assert os.getpid()
