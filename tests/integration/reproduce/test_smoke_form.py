"""The smoke form of ``stratos reproduce``, as the command that it is: a process for each row, and one report."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratos.reproduce.catalogue import ROWS
from tests.support.paths import ROOT
from tests.unit.reproduce.test_rows import CPU_ROWS, LONG

MAX_CPU_S = 60.0
FEW = ("block-table", "memory-budget")
"""One that measures and one that calculates: the others run without the command in ``test_rows``."""


def cpu_s() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_report(names: Sequence[str], tmp_path: Path) -> None:
    """Run the command for some rows, and look for all of them in what it wrote."""
    command = [sys.executable, "-m", "stratos.cli", "reproduce", *names, "--smoke", "--threads", "1", "--out"]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "reproduce.json").read_text(encoding="utf-8"))["rows"]
    assert {row["form"] for name, row in rows.items() if name in names} == {"smoke"}
    page = (tmp_path / "reproduce.html").read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f'<h2 id="{row.name}">' not in page] == []
    assert [name for name in names if f"<code>stratos reproduce {name} --smoke" not in page] == []


def test_the_smoke_form_writes_a_whole_report(tmp_path: Path) -> None:
    check_report(FEW, tmp_path)


@pytest.mark.slow
def test_twenty_rows_take_at_most_a_minute_of_processor_time(tmp_path: Path) -> None:
    began_s = cpu_s()
    check_report([row.name for row in CPU_ROWS if row.name not in LONG], tmp_path)
    assert cpu_s() - began_s <= MAX_CPU_S
