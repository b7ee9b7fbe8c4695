"""Libraries that decide by time take it from their ``Clock``, so that a test can move it: an AST scan."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

LIBS = ROOT / "libs" / "stratos"
PACKAGES = ("core", "engine", "kv_transfer", "planning", "routing", "text", "worker")
READS = {"time", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time_ns"}
MAY_READ = re.compile(rf"\bfrom\s+time\b|\btime\s*\.\s*({'|'.join(sorted(READS))})\b")
"""Reading the syntax of all files takes seconds."""


def reads_of_time(source: str) -> list[int]:
    """Lines that read a clock of the operating system."""
    lines: list[int] = []
    for node in ast.walk(ast.parse(source)) if MAY_READ.search(source) else ():
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for alias in node.names if alias.name in READS]
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
        if is_attribute and node.attr in READS:  # type: ignore[union-attr]
            lines.append(node.lineno)  # type: ignore[union-attr]
    return lines


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_reads_the_time_by_itself(package: str) -> None:
    files = list((LIBS / package).rglob("*.py"))
    assert files
    found = {path.name: lines for path in files if (lines := reads_of_time(path.read_text()))}
    assert found == {}


def test_the_scan_sees_what_it_looks_for() -> None:
    source = "import time\nfrom time import perf_counter\ntime.sleep(1)\na = time.monotonic\nb = time.time()\n"
    assert reads_of_time(source) == [2, 4, 5]
