"""The report of a chaos run: JSON, and a short page for people."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT


@dataclass(slots=True)
class ChaosReport:
    """Rows as scenarios end; written after each, so that a run that is cut off leaves what it found."""

    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.path is not None:
            content = {"environment": environment(), "started": self.started, "scenarios": self.rows}
            self.path.write_text(json.dumps(content, indent=1) + "\n")
            self.path.with_suffix(".md").write_text(self.page())

    def page(self) -> str:
        """Markdown."""
        facts = environment()
        failed = [row for row in self.rows if not row["passed"]]
        lines = [
            "# Chaos run",
            "",
            f"{self.started}, {facts['cpu']}, {facts['cores']} cores, commit {facts['commit'][:12]}.",
            "Every row: the same 24 mixed streams as in a run without a fault, half of them open when it came and half",
            "begun under it, compared by text, token ids, log probabilities, finish reasons and usage. `moved` counts",
            "streams that went on at another worker, `gap` is the longest pause of any stream. Rows of money:",
            "50 clients of four tenants, whose bills, limits and texts were compared; there `gap` is the longest TTFT.",
            "",
            "| scenario | passed | streams | different | failed | moved | gap | effect |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in self.rows),
        ]
        for row in failed:
            lines += ["", f"## {row['scenario']}", "", *(f"- {problem}" for problem in row["problems"])]
        return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = (
        row["scenario"], "yes" if row["passed"] else "**no**", row["streams"], row["different"], row["failed"],
        row["moved"], f"{row['longest_gap_s']:.1f} s", row["effect"],
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def environment() -> dict[str, Any]:
    """What the report belongs to."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": os.cpu_count(),
        "commit": commit.stdout.strip(),
    }
