"""Losses and their intervals as a plot: a row each, its interval as a line over its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stratos.cli.load.plots.scale import AxisScale, tick_text

WIDTH, ROW, TOP, BOTTOM = 760, 18, 28, 34
LABELS, RIGHT = 250, 20
_COLOURS = {"within": "#2ca02c", "beyond": "#d62728", "open": "#7f7f7f"}


def forest_svg(losses: Sequence[Mapping[str, Any]], title: str) -> str:
    """The plot as one ``svg`` element; an end of an interval that is not known is drawn to the edge."""
    height = TOP + ROW * len(losses) + BOTTOM
    axis = _axis(losses)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<text x="8" y="16" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for value in _ticks(axis):
        x = axis.at(value)
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{height - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{height - BOTTOM + 14}" text-anchor="middle">{tick_text(value)}</text>')
    for number, loss in enumerate(losses):
        parts += _row(loss, axis, TOP + ROW * number + ROW / 2)
    label = "loss of B against A, %; the tick is the bound"
    parts.append(f'<text x="{(LABELS + WIDTH) / 2}" y="{height - 4}" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</svg>"])


def _row(loss: Mapping[str, Any], axis: AxisScale, y: float) -> list[str]:
    colour, interval = _COLOURS[loss["verdict"]], loss["loss"]
    low = axis.first_px if interval["low"] is None else axis.at(100 * interval["low"])
    high = axis.last_px if interval["high"] is None else axis.at(100 * interval["high"])
    bound = axis.at(100 * loss["bound"])
    return [
        f'<text x="{LABELS - 8}" y="{y + 4}" text-anchor="end">{escape(loss["stratum"])}</text>',
        f'<line x1="{low}" y1="{y}" x2="{high}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{axis.at(100 * interval["value"])}" cy="{y}" r="3" fill="{colour}"/>',
        f'<line x1="{bound}" y1="{y - 7}" x2="{bound}" y2="{y + 7}" stroke="#333"/>',
    ]


def _axis(losses: Sequence[Mapping[str, Any]]) -> AxisScale:
    """Holds all values, bounds and known ends, and 0; in percent."""
    values = [0.0]
    for loss in losses:
        values += [loss["bound"], *(value for value in loss["loss"].values() if value is not None)]
    return AxisScale(low=100 * min(values), high=100 * max(values), first_px=LABELS, last_px=WIDTH - RIGHT)


def _ticks(axis: AxisScale) -> list[float]:
    """Round values on both sides of 0."""
    above = AxisScale(low=0.0, high=axis.high - axis.low, first_px=0, last_px=1).ticks()
    return [value for value in (*(-one for one in reversed(above[1:])), *above) if axis.low <= value <= axis.high]
