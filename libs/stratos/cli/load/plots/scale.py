"""Axes: values to pixels, linear or logarithmic, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)
MAX_TICKS = 8
_LEAST = 1e-300
"""Less than that cannot be divided into ticks: it counts as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """One axis."""

    low: float
    high: float
    first_px: float
    """Where ``low`` is."""
    last_px: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Pixels of a value; one outside the axis is moved to its end."""
        share = (self._place(min(max(value, self.low), self.high)) - self._place(self.low)) / self._span
        return round(self.first_px + share * (self.last_px - self.first_px), 1)

    def ticks(self) -> list[float]:
        """Round values on the axis."""
        return _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high)

    @property
    def _span(self) -> float:
        return self._place(self.high) - self._place(self.low)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.is_log else value


def axis_scale(values: Iterable[float], first_px: float, last_px: float, *, is_log: bool) -> AxisScale:
    """An axis that holds all values: a linear one from 0, a logarithmic one from its least value above 0."""
    found = [value for value in values if not is_log or value > _LEAST]
    high = max(found, default=1.0)
    low = min(found, default=0.1) if is_log else 0.0
    if high - low <= _LEAST:
        low, high = (low / 2, low * 2) if is_log else (0.0, 1.0)
    return AxisScale(low=low, high=high, first_px=first_px, last_px=last_px, is_log=is_log)


def tick_text(value: float) -> str:
    """A value as a tick has it."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _linear_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in _STEPS if power * one >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [step * 10.0**power for power in powers for step in _STEPS[:3] if low <= step * 10.0**power <= high]
    return found if len(found) <= MAX_TICKS else [one for one in found if math.log10(one) == round(math.log10(one))]
