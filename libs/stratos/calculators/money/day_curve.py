"""A load over the hours of a day: busy from one hour to another, local time, and even otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.calculators.bounds import above_zero
from stratos.common.errors import BadRequest

HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCurve:
    """Load of each hour, over the mean."""

    busy_from: int = 9
    busy_until: int = 17
    peak_factor: float = 3.0
    """Load of a busy hour over that of a quiet one."""

    def __post_init__(self) -> None:
        above_zero(peak_factor=self.peak_factor)
        if not 0 <= self.busy_from < self.busy_until <= HOURS:
            raise BadRequest("busy_from and busy_until must be hours, the first below the second", param="busy_from")

    def at(self, utc_hour: int, utc_offset: float) -> float:
        """Load over the mean, in the place that is ``utc_offset`` hours ahead; 24 hours add up to 24."""
        busy = self.busy_until - self.busy_from
        mean = (busy * self.peak_factor + HOURS - busy) / HOURS
        is_busy = self.busy_from <= (utc_hour + utc_offset) % HOURS < self.busy_until
        return (self.peak_factor if is_busy else 1.0) / mean
