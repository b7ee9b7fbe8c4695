"""What a check says."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class State(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "FAILED"
    UNKNOWN = "unknown"
    """The check could not tell: its control did not work here."""


@dataclass(frozen=True, slots=True)
class IsolationFinding:
    """One check."""

    state: State
    check: str
    detail: str

    def line(self) -> str:
        """For a terminal."""
        return f"{self.state.value:<8} {self.check}: {self.detail}"


def finding(check: str, problems: Iterable[str], detail: str) -> IsolationFinding:
    """A check that holds unless there are problems."""
    found = list(problems)
    if not found:
        return IsolationFinding(State.OK, check, detail)
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return IsolationFinding(State.FAILED, check, "; ".join(found[:3]) + more)
