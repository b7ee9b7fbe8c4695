"""The smoke form of ``stratos reproduce``, as the command that it is: a process for each row, and one report."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from stratos.reproduce.catalogue import ROWS
from tests.support.paths import ROOT
from tests.unit.reproduce.test_rows import CPU_ROWS, LONG

MAX_CPU_S = 60.0


def cpu_s() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_smoke_form_writes_a_whole_report_within_a_minute_of_processor_time(tmp_path: Path) -> None:
    names = [row.name for row in CPU_ROWS if row.name not in LONG]
    command = [sys.executable, "-m", "stratos.cli", "reproduce", *names, "--smoke", "--threads", "1", "--out"]
    began_s = cpu_s()
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cpu_s() - began_s <= MAX_CPU_S
    rows = json.loads((tmp_path / "reproduce.json").read_text(encoding="utf-8"))["rows"]
    assert {row["form"] for name, row in rows.items() if name in names} == {"smoke"}
    page = (tmp_path / "reproduce.html").read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f'<h2 id="{row.name}">' not in page] == []
    assert [name for name in names if f"<code>stratos reproduce {name} --smoke" not in page] == []
