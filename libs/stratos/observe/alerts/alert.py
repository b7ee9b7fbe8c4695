"""One alert and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ACTIVE = " and on (release, instance) (stratos_autoscaler_active == 1)"
"""The one autoscaler that acts: numbers of the others, or of one that did before, are old."""

AWAKENED = f"max by (release, model) (min_over_time(stratos_autoscaler_desired_workers[15m]){ACTIVE}) == 0"
"""Models that sleep, or did within the last quarter of an hour: their requests wait for a worker to start."""

FEWEST = 10
"""Fewer events than this raise no alert on a part of all: one failed request of a quiet night pages no one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule, and its page in docs/runbooks."""

    name: str
    expr: str
    lasting: str = "0m"
    """How long it must hold, in Prometheus' units."""
    severity: Literal["page", "ticket"] = "ticket"
    """Page: people notice now. Ticket: within a working day."""
    summary: str
    meaning: str
    check: tuple[str, ...]
    act: tuple[str, ...]
