"""Tests of the engine's host wing that make an engine run with and without overlap."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "unit" / "engine"
FILES = [
    *FOLDER.glob("*.py"),
    *(p for name in ("kv_cache", "requests", "scheduler") for p in FOLDER.glob(f"{name}/*.py")),
]
ONE_WAY = {
    "test_step_overlap.py": "is about overlap, or compares both",
    "test_kv_groups.py": "with overlap there are no groups, as a test of it says",
    "test_a_hand_off_starts_from_what_the_host_holds": "with overlap a hand-off does not wait for host memory",
}


def one_way_tests(source: str) -> Iterator[str]:
    """Tests that construct an ``EngineCore`` and take no ``overlap``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            calls = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            if "EngineCore" in calls and "overlap" not in {argument.arg for argument in node.args.args}:
                yield node.name


def is_exempt(path: Path, test: str) -> bool:
    return path.name in ONE_WAY or test in ONE_WAY


def test_engines_are_stepped_with_and_without_overlap() -> None:
    assert len(FILES) > 10
    found = [(p.name, t) for p in FILES for t in one_way_tests(p.read_text()) if not is_exempt(p, t)]
    assert found == []


def test_the_scan_sees() -> None:
    assert list(one_way_tests("def test_a(overlap):\n    EngineCore()\ndef test_b():\n    EngineCore()")) == ["test_b"]
