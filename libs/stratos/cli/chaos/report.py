"""The report of a run: JSON, and a short page for people."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos.cli.chaos.promises import observed_promises, promise_table
from stratos.reproduce.machine import read_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRow:
    """One scenario."""

    scenario: str
    streams: int
    different: int = 0
    """Streams that are not those of a run without a fault."""
    failed: int = 0
    moved: int = 0
    """Streams that went on at another worker."""
    longest_gap_s: float = 0.0
    is_felt: bool = True
    """A worker that was disturbed had requests or hand-offs then, as far as routers knew."""
    had_effect: bool = True
    """Every fault of it proved its effect."""
    effect: str = ""
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Nothing of it is a problem."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """All fields, and whether it passed."""
        return {**dataclasses.asdict(self), "passed": self.passed}


@dataclass(slots=True)
class ChaosReport:
    """Rows as scenarios end; written after each, so that a run that is cut off leaves what it found."""

    path: Path | None
    rows: list[ChaosRow] = field(default_factory=list)
    about: str = ""
    """Name of the platform that was broken."""
    environment: dict[str, Any] = field(default_factory=read_environment)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))

    def __post_init__(self) -> None:
        if self.path is not None:  # said now, not when the first scenario has ended
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: ChaosRow) -> None:
        """A scenario has ended."""
        self.rows.append(row)
        if self.path is not None:
            rows = [row.as_json() for row in self.rows]
            content = {"environment": self.environment, "about": self.about, "started": self.started, "scenarios": rows}
            self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            self.path.with_suffix(".md").write_text(self.page(), encoding="utf-8")

    def page(self) -> str:
        """Markdown."""
        facts = self.environment
        lines = [
            "# Chaos run",
            "",
            f"{self.started}, {facts['cpu']}, {facts['cores']} cores, commit {facts['commit'][:12]}"
            f"{f'; {self.about}' if self.about else ''}.",
            "Every row: the same 24 mixed streams as in a run without a fault, half of them open when it came, four",
            "begun just before it and the others under it, compared by text, token ids, log probabilities, finish",
            "reasons and usage. `moved` counts streams that went on at another worker, `gap` is the longest pause of",
            "any stream, and `not felt` is a fault whose worker had nothing to do just before it. Rows of money:",
            "64 clients of five tenants, whose bills, limits and texts were compared; there `gap` is the longest TTFT.",
            "",
            "| scenario | passed | streams | different | failed | moved | gap | effect |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in self.rows),
            "",
            *promise_table(observed_promises(self.rows)),
        ]
        for row in self.rows:
            if not row.passed:
                lines += ["", f"## {row.scenario}", "", *(f"- {problem}" for problem in row.problems)]
        return "\n".join(lines) + "\n"


def _line(row: ChaosRow) -> str:
    cells = (
        row.scenario, "yes" if row.passed else "**no**", row.streams, row.different, row.failed, row.moved,
        f"{row.longest_gap_s:.1f} s", row.effect,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"
