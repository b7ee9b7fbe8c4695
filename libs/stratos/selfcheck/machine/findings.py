"""What a check of ``stratos doctor`` found, and how it is told."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and slower or with less than there could be."""
    FAIL = "fail"
    """A platform does not start, or does not stay up."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    level: Level
    text: str
    advice: str = ""
    """What to change; empty where nothing is wrong."""

    def as_json(self) -> dict[str, str]:
        return {"check": self.check, "level": self.level.value, "text": self.text, "advice": self.advice}


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    """Works, and could be better."""
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    """Must be repaired."""
    return Finding(check, Level.FAIL, text, advice)


def report(findings: Sequence[Finding]) -> str:
    """A line for each finding, and one below it for the advice."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.level.value:<4}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    lines.append(f"{counts[Level.OK]} in order, {counts[Level.WARN]} to look at, {counts[Level.FAIL]} to repair")
    return "\n".join(lines)
