"""One panel: a number with the curve under it, or curves with their legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from scripts.docs.dashboard_pictures.series import Series, readable
from stratos.observe.panels import Panel, Unit

COLOURS = ("#3274d9", "#56a64b", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#1f60c4", "#c4162a", "#7c8ea6")
MAX_LEGENDS = 6
_LEFT, _TOP, _BOTTOM = 62, 34, 42


@dataclass(frozen=True, slots=True)
class Box:
    """Where a panel is, in pixels."""

    x: float
    y: float
    width: float
    height: float


def draw_panel(panel: Panel, series: Sequence[Series], box: Box, span: tuple[float, float]) -> list[str]:
    """The lines of SVG of one panel.

    Args:
        panel: of the table.
        series: what its queries gave.
        box: its place.
        span: first and last time, Unix seconds.
    """
    shown = [one for one in series if one.finite]
    parts = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" fill="#fff" stroke="#d8d9da"/>',
        _text(box.x + 10, box.y + 20, panel.title + (" (recorded)" if panel.needs_gpu and shown else ""), "bold"),
    ]
    if not shown:
        return [*parts, _text(box.x + box.width / 2 - 25, box.y + box.height / 2, "no data", colour="#999")]
    if panel.kind == "stat":
        return parts + _numbers(panel, shown, box, span)
    return parts + _curves(panel.unit, shown, box, span)


def _numbers(panel: Panel, series: Sequence[Series], box: Box, span: tuple[float, float]) -> list[str]:
    parts = []
    for i, one in enumerate(series[:3]):
        y = box.y + 62 + 30 * i
        parts.append(_text(box.x + 14, y, readable(one.last, panel.unit), "bold", COLOURS[i], size=24))
        parts.append(_text(box.x + box.width - 90, y, one.legend, colour="#666"))
    if panel.has_trend:
        low, high = _bounds(series[:1])
        area = Box(box.x + 10, box.y + box.height - 40, box.width - 20, 32)
        parts.append(_line(series[0], COLOURS[0], area, span, (low, high)))
        first = series[0].finite[0][1]
        if first:
            change = (series[0].last - first) / abs(first)
            parts.append(_text(box.x + box.width - 90, box.y + 84, f"{change:+.0%}", colour="#666"))
    return parts


def _curves(unit: Unit, series: Sequence[Series], box: Box, span: tuple[float, float]) -> list[str]:
    low, high = _bounds(series)
    area = Box(box.x + _LEFT, box.y + _TOP, box.width - _LEFT - 12, box.height - _TOP - _BOTTOM)
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = area.y + area.height * (1 - part)
        parts.append(f'<line x1="{area.x}" y1="{y:.1f}" x2="{area.x + area.width}" y2="{y:.1f}" stroke="#e9edf2"/>')
        parts.append(_text(box.x + 8, y + 4, readable(low + (high - low) * part, unit), colour="#666", size=10))
    for i, one in enumerate(series):
        parts.append(_line(one, COLOURS[i % len(COLOURS)], area, span, (low, high)))
    x = box.x + 12
    for i, one in enumerate(series[:MAX_LEGENDS]):
        label = one.legend or "value"
        if x + 7 * len(label) > box.x + box.width - 40:
            break
        parts.append(f'<rect x="{x}" y="{box.y + box.height - 20}" width="10" height="4" fill="{COLOURS[i]}"/>')
        parts.append(_text(x + 14, box.y + box.height - 14, label, colour="#444", size=10))
        x += 24 + 6.2 * len(label)
    return parts


def _line(one: Series, colour: str, area: Box, span: tuple[float, float], bounds: tuple[float, float]) -> str:
    (begin, end), (low, high) = span, bounds
    across, up = area.width / (end - begin), area.height / (high - low)
    bottom = area.y + area.height
    points = " ".join(f"{area.x + (t - begin) * across:.1f},{bottom - (v - low) * up:.1f}" for t, v in one.finite)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _bounds(series: Sequence[Series]) -> tuple[float, float]:
    values = [value for one in series for _, value in one.finite]
    low, high = min(0.0, *values), max(values)
    return low, high if not math.isclose(low, high) else low + 1.0


def _text(x: float, y: float, text: str, weight: str = "normal", colour: str = "#222", size: int = 12) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
    )
