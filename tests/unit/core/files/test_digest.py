"""The digest of files: its definition, and every byte counts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stratos.core.files import digest
from stratos.core.files.digest import files_digest


def defined(files: list[tuple[str, bytes]], piece: int) -> str:
    whole = hashlib.sha256()
    for name, content in files:
        whole.update(f"{name}\0{len(content)}\0".encode())
        for begin in range(0, len(content), piece):
            whole.update(hashlib.sha256(content[begin : begin + piece]).digest())
    return whole.hexdigest()


@pytest.mark.parametrize("sizes", [(0, 1), (10, 20), (21, 9), (100, 30)])
def test_pieces_are_hashed_in_order_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    monkeypatch.setattr(digest, "PIECE_BYTES", 10)
    contents = [(name, bytes(range(size))) for name, size in zip("ab", sizes, strict=True)]
    for name, content in contents:
        (tmp_path / name).write_bytes(content)
    named = [(name, tmp_path / name) for name, _ in contents]
    before = files_digest(named)
    assert before == defined(contents, 10)
    assert files_digest(named[::-1]) != before
    for place in range(0, sizes[1], 7):
        changed = bytearray(contents[1][1])
        changed[place] ^= 1
        (tmp_path / "b").write_bytes(changed)
        assert files_digest(named) != before, place


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_digest([("a", tmp_path / "a")])
