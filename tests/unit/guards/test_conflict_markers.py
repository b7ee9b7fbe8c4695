"""No text file keeps the markers of a merge that was not finished."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_MARKER = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)


def tracked_text() -> list[Path]:
    """Files under version control without a zero byte in their first 8000; skips where there is no repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git repository")
    paths = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8000]]


def test_no_tracked_text_holds_conflict_markers() -> None:
    files = tracked_text()
    assert len(files) > 300
    assert [path.relative_to(ROOT).as_posix() for path in files if _MARKER.search(path.read_bytes())] == []


@pytest.mark.parametrize("line", [b"<" * 7 + b" HEAD", b">" * 7 + b" main"])
def test_markers_are_found(line: bytes) -> None:
    assert _MARKER.search(b"before\n" + line + b"\nafter\n")
    assert not _MARKER.search(b"text with " + line)
