"""docs/tour.md: its files are there, few, and lean on one another, on records and contracts, or on their own room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.paths import ROOT

TOUR = ROOT / "docs" / "tour.md"
MOST_FILES = 25
MOST_OUTSIDE = 53
"""Imports of a toured file that are none of these: lower it when one goes, never raise it."""
COMMON = ("stratos.api", "stratos.common", "stratos.core")
CONTRACTS = {
    "base",
    "contract",
    "framing",
    "output",
    "plan",
    "prepared",
    "records",
    "results",
    "runner",
    "settings",
    "transfer",
}
_FILE = re.compile(r"^\d+\. \[[^\]]+\]\(\.\./([^)]+\.py)\)", re.MULTILINE)


def toured() -> list[Path]:
    return [ROOT / name for name in _FILE.findall(TOUR.read_text(encoding="utf-8"))]


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    start = next(index for index, part in enumerate(parts) if part.startswith("stratos"))
    return ".".join(parts[start:])


def outside(path: Path, tour: set[str]) -> list[str]:
    """Modules of ours that a toured file imports and a reader of the tour does not know."""
    room = module_of(path).rpartition(".")[0]
    imports = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("stratos")
    }
    known = {
        m for m in imports if m in tour or m.startswith((*COMMON, f"{room}.")) or m.rpartition(".")[2] in CONTRACTS
    }
    return sorted(imports - known)


def test_the_tour_has_few_files_and_all_are_there() -> None:
    files = toured()
    assert 20 <= len(files) <= MOST_FILES
    assert [path for path in files if not path.is_file()] == []
    assert len(set(files)) == len(files)


def test_toured_files_lean_on_one_another() -> None:
    tour = {module_of(path) for path in toured()}
    found = {path.name: outside(path, tour) for path in toured() if path.name != "wiring.py"}
    count = sum(map(len, found.values()))
    assert count <= MOST_OUTSIDE, f"{count}: {found}"
