"""Figures of an end-to-end run: JSON, and a page for people."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos.reproduce.machine import read_environment

HEAD = ("passed", "ended", "commit", "cpu")


@dataclass(slots=True)
class ClusterReport:
    """Points as they end, written after each: a run that is cut off leaves what it found.

    A report that is there is added to, so that points may run one by one; each names its commit.
    """

    path: Path | None
    cluster: str
    points: dict[str, dict[str, Any]] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each that has ended, failed ones too: those have no figures."""

    @classmethod
    def from_environment(cls, cluster: str) -> ClusterReport:
        """Into the file E2E_REPORT, or nowhere."""
        path = os.environ.get("E2E_REPORT")
        report = cls(Path(path) if path else None, cluster)
        if report.path is not None and report.path.exists():
            content = json.loads(report.path.read_text())
            report.points, report.tests = content["points"], content.get("tests", {})
        return report

    def add(self, point: str, *, has_passed: bool, **figures: Any) -> None:
        facts = read_environment()
        head = {
            "passed": has_passed,
            "ended": time.strftime("%Y-%m-%d %H:%M"),
            "commit": facts["commit"],
            "cpu": facts["cpu"],
        }
        self.points[point] = head | figures
        self._write()

    def end(self, test: str, *, seconds: float, why: str = "") -> None:
        """A test is over; ``why`` it failed, empty where it passed."""
        row = {"passed": not why, "s": round(seconds), "commit": read_environment()["commit"]}
        self.tests[test] = row | ({"why": why} if why else {})
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            points = {"points": self.points, "tests": self.tests}
            content = {"cluster": self.cluster, "environment": read_environment(), **points}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(content, indent=1) + "\n")
            self.path.with_suffix(".md").write_text(self.page())

    def page(self) -> str:
        """Markdown."""
        lines = [
            "# End-to-end run on a cluster",
            "",
            f"{self.cluster}; {read_environment()['cores']} cores in all.",
        ]
        for point, row in sorted(self.points.items()):
            lines += [
                "",
                f"## {point}",
                "",
                f"{_verdict(row)}, {row['ended']}, commit {row['commit'][:12]}{_on(row)}.",
                "",
            ]
            figures = {name: value for name, value in row.items() if name not in HEAD}
            lines += [
                "| what | figure |",
                "|---|---|",
                *(f"| {name.replace('_', ' ')} | {_cell(value)} |" for name, value in figures.items()),
            ]
        return "\n".join([*lines, *self._page_of_tests()]) + "\n"

    def _page_of_tests(self) -> list[str]:
        """A line each, with what was wrong."""
        head = ["", "## Tests", "", "| test | end | s | commit |", "|---|---|---|---|"]
        ends = sorted((name, _verdict(row), row.get("why", ""), row) for name, row in self.tests.items())
        rows = [f"| {name} | {end} {why} | {row['s']} | {row['commit'][:12]} |" for name, end, why, row in ends]
        return [*head, *rows] if rows else []


def _verdict(row: dict[str, Any]) -> str:
    return "Passed" if row["passed"] else "**Failed**"


def _on(row: dict[str, Any]) -> str:
    """The processor, which reports did not name at first."""
    return f", on {row['cpu']}" if "cpu" in row else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    return str(value)
