"""Findings of checks, and the reports of them that a terminal shows."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, and slower or with less than there could be."""
    FAIL = "fail"
    """A platform does not start, does not stay up, or lets tenants reach one another."""
    UNKNOWN = "unknown"
    """The check could not tell: its control did not work here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check that has ended."""

    check: str
    level: Level
    text: str
    advice: str = ""
    """A change that repairs it; empty where nothing is wrong."""

    def as_json(self) -> dict[str, str]:
        return {"check": self.check, "level": self.level.value, "text": self.text, "advice": self.advice}


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    """Works, and could be better."""
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str = "") -> Finding:
    """Must be repaired."""
    return Finding(check, Level.FAIL, text, advice)


def unknown(check: str, text: str) -> Finding:
    """Nothing is shown either way."""
    return Finding(check, Level.UNKNOWN, text)


def judged(check: str, problems: Iterable[str], text: str) -> Finding:
    """A check that holds unless there are problems, of which the first three are shown."""
    found = list(problems)
    if not found:
        return ok(check, text)
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return fail(check, "; ".join(found[:3]) + more)


def lines(findings: Iterable[Finding]) -> str:
    """A line for each finding, failures in capitals."""
    return "\n".join(f"{_word(finding.level):<8} {finding.check}: {finding.text}" for finding in findings)


def _word(level: Level) -> str:
    return "FAILED" if level is Level.FAIL else level.value


def report(findings: Sequence[Finding]) -> str:
    """Columns for the findings, advice below a line that needs it, and their number by level."""
    width = max((len(finding.check) for finding in findings), default=0)
    rows: list[str] = []
    for finding in findings:
        rows.append(f"{finding.level.value:<4}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            rows.append(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    rows.append(f"{counts[Level.OK]} in order, {counts[Level.WARN]} to look at, {counts[Level.FAIL]} to repair")
    return "\n".join(rows)
