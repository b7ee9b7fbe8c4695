"""A digest that another process computed counts as long as the files are those that it read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files import model_files
from stratos.core.files.model_files import digest_to_hand_over, read_model_files

CONFIG = '{"vocab_size": 8, "max_position_embeddings": 16}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "a.safetensors").write_bytes(b"weights of one kind")
    (tmp_path / "b.safetensors").write_bytes(b"weights of another")
    return tmp_path


def test_weights_are_read_once_by_the_process_that_hands_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, handed = read_model_files(folder).digest, digest_to_hand_over(folder)
    hashed = []
    monkeypatch.setattr(model_files, "files_digest", lambda files, *_: hashed.append(list(files)) or "computed here")
    assert read_model_files(folder, handed).digest == own
    assert not hashed
    assert read_model_files(folder).digest == "computed here"  # the control: without it they are read again


def test_exchanged_weights_are_hashed_though_size_and_time_are_the_same(folder: Path) -> None:
    handed, path = digest_to_hand_over(folder), folder / "b.safetensors"
    before = path.stat()
    path.write_bytes(path.read_bytes().upper())
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of file systems ticks every few milliseconds
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    digest = read_model_files(folder, handed).digest
    assert digest == read_model_files(folder).digest
    assert not handed.startswith(digest)


def test_a_file_more_or_another_name_is_hashed(folder: Path) -> None:
    handed = digest_to_hand_over(folder)
    (folder / "b.safetensors").rename(folder / "c.safetensors")
    assert read_model_files(folder, handed).digest == read_model_files(folder).digest
    handed = digest_to_hand_over(folder)
    (folder / "d.safetensors").write_bytes(b"one more")
    assert read_model_files(folder, handed).digest == read_model_files(folder).digest


@pytest.mark.parametrize("handed", ["@", "nonsense", "0" * 64, "0" * 64 + "@" + "0" * 64])
def test_what_is_no_digest_of_these_files_does_not_count(folder: Path, handed: str) -> None:
    assert read_model_files(folder, handed).digest == read_model_files(folder).digest


def test_a_folder_without_weights_is_refused_as_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"no \*.safetensors file"):
        digest_to_hand_over(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="is not a folder"):
        digest_to_hand_over(tmp_path / "missing")
