"""Series that a panel draws, and numbers as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratos.observe.panels import Unit

_SHORT = {"s": " s", "percentunit": " %", "bytes": "B", "Bps": "B/s", "reqpm": "/min", "watt": " W", "celsius": " °C"}
DAY_S = 86400.0
_BIG = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Series:
    """One line: times in Unix seconds, and values."""

    legend: str
    points: tuple[tuple[float, float], ...]

    @property
    def finite(self) -> tuple[tuple[float, float], ...]:
        """Points that can be drawn."""
        return tuple(point for point in self.points if math.isfinite(point[1]))

    @property
    def last(self) -> float:
        """NaN without any."""
        return self.finite[-1][1] if self.finite else math.nan


def legend_of(pattern: str, labels: Mapping[str, str]) -> str:
    """``{{label}}`` replaced by its value."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), pattern).strip()


def readable(value: float, unit: Unit) -> str:
    """A number with its unit, in three digits."""
    if not math.isfinite(value):
        return "no data"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and abs(value) >= DAY_S:
        return f"{value / DAY_S:.3g} d"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    for size, letter in _BIG:
        if abs(value) >= size and unit != "s":
            return f"{value / size:.3g} {letter}{_SHORT.get(unit, '').strip()}"
    return f"{value:.3g}{_SHORT.get(unit, '')}"
