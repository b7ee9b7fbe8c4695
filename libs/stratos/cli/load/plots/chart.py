"""A chart as SVG text: axes, lines and dots with a legend. Texts are escaped; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stratos.cli.load.plots.scale import AxisScale, axis_scale, tick_text

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 30, 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
FORMS = ((1.6, True, ""), (2.4, False, ' stroke-dasharray="6 3"'), (3.2, True, ' stroke-dasharray="2 2"'))
"""How series of one colour differ: radius of their dots, whether these are filled, and dashes of their lines."""
MAX_DOTS = 4000
"""Dots of a series; of more an even sample is drawn."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points with a name."""

    name: str
    points: Points
    is_line: bool = True
    """Joined by a line, else dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series on a pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_x_log: bool = False
    is_y_log: bool = False


def chart_svg(chart: Chart) -> str:
    """The chart as one ``svg`` element."""
    points = [point for series in chart.series for point in series.points]
    x_axis = axis_scale((x for x, _ in points), LEFT, WIDTH - RIGHT, is_log=chart.is_x_log)
    y_axis = axis_scale((y for _, y in points), HEIGHT - BOTTOM, TOP, is_log=chart.is_y_log)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<text x="{LEFT}" y="14" font-size="13" font-weight="bold">{escape(chart.title)}</text>',
        *_x_ticks(x_axis),
        *_y_ticks(y_axis),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart.x_label, "middle"),
        f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(chart.y_label)}</text>',
    ]
    for number, series in enumerate(chart.series):
        parts += _drawn(series, number, x_axis, y_axis)
        parts.append(_legend_mark(series, number))
        parts.append(_text(WIDTH - 138, TOP + 8 + 14 * number, series.name))
    return "\n".join([*parts, "</svg>"])


def _form(number: int) -> tuple[str, float, bool, str]:
    """Colour of a series, and its form."""
    radius, is_filled, dashes = FORMS[number // len(COLOURS) % len(FORMS)]
    return COLOURS[number % len(COLOURS)], radius, is_filled, dashes


def _legend_mark(series: Series, number: int) -> str:
    colour, radius, is_filled, dashes = _form(number)
    x, y = WIDTH - 150, TOP + 14 * number
    if series.is_line and dashes:
        return f'<line x1="{x - 6}" y1="{y + 4}" x2="{x + 8}" y2="{y + 4}" stroke="{colour}" stroke-width="2"{dashes}/>'
    if not is_filled:
        return f'<circle cx="{x + 4}" cy="{y + 4}" r="3.5" fill="none" stroke="{colour}"/>'
    if radius > FORMS[0][0]:
        return f'<circle cx="{x + 4}" cy="{y + 4}" r="{radius + 1}" fill="{colour}"/>'
    return f'<rect x="{x}" y="{y}" width="8" height="8" fill="{colour}"/>'


def _drawn(series: Series, number: int, x_axis: AxisScale, y_axis: AxisScale) -> list[str]:
    colour, radius, is_filled, dashes = _form(number)
    every = 1 if series.is_line else -(-len(series.points) // MAX_DOTS)
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in series.points[:: max(1, every)]]
    if series.is_line:
        joined = " ".join(f"{x},{y}" for x, y in places)
        return [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>']
    look = f'fill="{colour}" fill-opacity="0.6"' if is_filled else f'fill="none" stroke="{colour}"'
    return [f'<circle cx="{x}" cy="{y}" r="{radius}" {look}/>' for x, y in places]


def _x_ticks(axis: AxisScale) -> list[str]:
    end = HEIGHT - BOTTOM
    return [
        part
        for value in axis.ticks()
        for part in (
            _line(axis.at(value), TOP, axis.at(value), end),
            _text(axis.at(value), end + 14, tick_text(value), "middle"),
        )
    ]


def _y_ticks(axis: AxisScale) -> list[str]:
    return [
        part
        for value in axis.ticks()
        for part in (
            _line(LEFT, axis.at(value), WIDTH - RIGHT, axis.at(value)),
            _text(LEFT - 5, axis.at(value) + 4, tick_text(value), "end"),
        )
    ]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
