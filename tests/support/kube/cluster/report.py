"""Figures of an end-to-end run: JSON, and a page for people."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos.reproduce.machine import read_environment

HEAD = ("passed", "ended", "commit", "images", "cpu", "load")


@dataclass(slots=True)
class ClusterReport:
    """Points as they end, written after each: a run that is cut off leaves what it found.

    A report that is there is added to, so that points may run one by one, or side by side; each names its commit, and
    the tag of its images: that of another commit where the points have changed since and the product has not.
    """

    path: Path | None
    cluster: str
    images: str = ""
    points: dict[str, dict[str, Any]] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each that has ended, failed ones too: those have no figures."""

    @classmethod
    def from_environment(cls, cluster: str, images: str = "") -> ClusterReport:
        """Into the file E2E_REPORT, or nowhere."""
        path = os.environ.get("E2E_REPORT")
        return cls(Path(path) if path else None, cluster, images)

    def add(self, point: str, *, has_passed: bool, **figures: Any) -> None:
        head = {"passed": has_passed, "ended": time.strftime("%Y-%m-%d %H:%M"), "cpu": read_environment()["cpu"]}
        with self._file():
            self.points[point] = head | self._facts() | figures

    def end(self, test: str, *, seconds: float, why: str = "") -> None:
        """A test is over; ``why`` it failed, empty where it passed."""
        row = {"passed": not why, "s": round(seconds)}
        with self._file():
            self.tests[test] = row | self._facts() | ({"why": why} if why else {})

    def _facts(self) -> dict[str, Any]:
        """What it ran with, and beside how much: the load average of 1, 5 and 15 minutes at its end."""
        load = [round(value, 1) for value in os.getloadavg()]
        return {"commit": read_environment()["commit"], "images": self.images, "load": load}

    @contextmanager
    def _file(self) -> Iterator[None]:
        """What it has now, for a change, which is written; no other run does so at the same time."""
        if self.path is None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self.path.exists():
                content = json.loads(self.path.read_text())
                self.points, self.tests = content["points"], content.get("tests", {})
            yield
            content = {"cluster": self.cluster, "environment": read_environment()}
            self.path.write_text(json.dumps(content | {"points": self.points, "tests": self.tests}, indent=1) + "\n")
            self.path.with_suffix(".md").write_text(self.page())
        finally:
            os.close(folder)

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
                f"{_verdict(row)}, {row['ended']}, commit {row['commit'][:12]}{_on(row)}{_with(row)}.",
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
        head = ["", "## Tests", "", "| test | end | s | commit | images | load average |", "|---|---|---|---|---|---|"]
        ends = sorted((name, _verdict(row), row.get("why", ""), row) for name, row in self.tests.items())
        rows = [
            f"| {name} | {end} {why} | {row['s']} | {row['commit'][:12]}{_cells(row)} |" for name, end, why, row in ends
        ]
        return [*head, *rows] if rows else []


def _verdict(row: dict[str, Any]) -> str:
    return "Passed" if row["passed"] else "**Failed**"


def _on(row: dict[str, Any]) -> str:
    """The processor, which reports did not name at first."""
    return f", on {row['cpu']}" if "cpu" in row else ""


def _with(row: dict[str, Any]) -> str:
    """Images and load, which reports did not name at first either."""
    return f", images {row['images']}, load average {_of_load(row)}" if "images" in row else ""


def _cells(row: dict[str, Any]) -> str:
    return f" | {row.get('images', '')} | {_of_load(row)}"


def _of_load(row: dict[str, Any]) -> str:
    return " ".join(map(str, row.get("load", ())))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    return str(value)
