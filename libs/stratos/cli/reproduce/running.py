"""Rows one after the other, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stratos.cli.reproduce.documents import ReportFile
from stratos.reproduce.catalogue import ReproducedRow
from stratos.reproduce.load.local_platform import interrupt
from stratos.reproduce.record.conditions import RowConditions, RowForm

STOP_S = 30.0
"""Seconds in which a row that was told to stop ends what it started."""
WHOLE_S = 5400.0
"""Seconds of one call in the full form, the ends of rows that are stopped included."""
MeasureRow = Callable[[ReproducedRow, RowConditions], Mapping[str, Any] | None]
"""``None`` where the row broke; its own words are on stderr."""


def run_rows(
    rows: Iterable[ReproducedRow],
    conditions: RowConditions,
    report: ReportFile,
    *,
    commit: str | None,
    again: bool,
    of_gpus: Mapping[str, Mapping[str, Any]] | None,
    measure: MeasureRow,
    say: Callable[[str], None],
) -> list[str]:
    """Measure what the report lacks, also after a row that broke.

    Args:
        rows: in order.
        conditions: of all of them.
        report: gets each row when it has ended.
        commit: of the code; rows of another one are measured again. ``None`` keeps those of any.
        again: measure rows that the report has, too.
        of_gpus: documents that were made elsewhere, by row; ``None`` where this machine's own GPU answers.
        measure: runs one.
        say: told what goes on.

    Returns:
        Rows that broke.
    """
    broken = []
    for row in rows:
        if row.needs_gpu and of_gpus is not None:
            say(f"{row.name}: {_put_committed(report, of_gpus.get(row.name))}")
        elif not again and report.has(row.name, conditions, commit):
            say(f"{row.name}: kept")
        elif (document := measure(row, conditions)) is None:
            broken.append(row.name)
            say(f"{row.name}: broken, its own words are above")
        else:
            report.put(document)
            loaded = ", while others used the machine" if document["run"]["loaded"] else ""
            say(f"{row.name}: {document['run']['duration_s']} s{loaded}")
    return broken


def _put_committed(report: ReportFile, document: Mapping[str, Any] | None) -> str:
    """Take over a row that this machine cannot answer; returns what to say of it."""
    if document is None:
        return "not run, it needs a GPU"
    report.put(document)
    return f"of {document['environment']['file']}, measured on one {document['environment']['gpu']}"


def measure_in_process(row: ReproducedRow, conditions: RowConditions) -> Mapping[str, Any] | None:
    """Run ``python -m stratos.reproduce`` for the row; ``None`` if it broke."""
    return _measured(row, conditions, None)


class WholeReport:
    """Measures the rows of one call, which keeps a bound of its own in the full form.

    A row is stopped at its bound, and no row begins or goes on after that of the call: the next one goes on there.
    """

    def __init__(self, limit_s: float = WHOLE_S, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._until = now, now() + limit_s

    def __call__(self, row: ReproducedRow, conditions: RowConditions) -> Mapping[str, Any] | None:
        if conditions.form is not RowForm.FULL:
            return _measured(row, conditions, None)
        left_s = self._until - self._now() - STOP_S
        if left_s <= 0:
            sys.stderr.write("the time of one call is over; the same command goes on here\n")
            return None
        return _measured(row, conditions, min(60 * row.full_minutes, left_s))


def _measured(row: ReproducedRow, conditions: RowConditions, bound_s: float | None) -> Mapping[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "row.json")
        command = [
            sys.executable, "-m", "stratos.reproduce", row.name, "--form", str(conditions.form),
            "--seed", str(conditions.seed), "--threads", str(conditions.threads), "--model", str(conditions.model),
            "--folder", str(conditions.folder), "--out", str(out),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(conditions.threads)}
        if _exit_code(command, environment, bound_s) or not out.is_file():
            return None
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def _exit_code(command: list[str], environment: Mapping[str, str], bound_s: float | None) -> int:
    """Exit code of the process, which is stopped at the bound as by Ctrl-C: what it started ends with it."""
    # In a session of its own: a terminal's Ctrl-C reaches it once, from here.
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            return process.wait(bound_s)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"stopped after {bound_s:g} s, its bound; named alone, a row has none\n")
            return interrupt(process, STOP_S) or 1
        except KeyboardInterrupt:
            interrupt(process, STOP_S)
            raise
