"""A page of panels, placed as Grafana would place them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from scripts.docs.dashboard_pictures.panel import Box, draw_panel
from scripts.docs.dashboard_pictures.series import Series
from stratos.observe.grafana import grafana_json
from stratos.observe.panels import Dashboard

COLUMN, ROW, GAP, HEAD = 50, 26, 6, 44


def draw_page(page: Dashboard, found: Mapping[str, Sequence[Series]], span: tuple[float, float]) -> str:
    """The picture.

    Args:
        page: of the table.
        found: what the queries of each panel gave, by its title.
        span: first and last time, Unix seconds.
    """
    panels = {panel.title: panel for panel in page.panels}
    parts, bottom = [], 0
    for placed in grafana_json(page)["panels"]:
        place = placed["gridPos"]
        box = Box(
            x=place["x"] * COLUMN + GAP,
            y=place["y"] * ROW + HEAD + GAP,
            width=place["w"] * COLUMN - GAP,
            height=place["h"] * ROW - GAP,
        )
        bottom = max(bottom, place["y"] + place["h"])
        parts += draw_panel(panels[placed["title"]], found[placed["title"]], box, span)
    width, height = 24 * COLUMN + 2 * GAP, bottom * ROW + HEAD + 2 * GAP
    head = f'<text x="12" y="30" font-size="20" font-weight="bold" fill="#222">{escape(page.title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif">\n<rect width="{width}" height="{height}" fill="#f4f5f8"/>\n{head}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
