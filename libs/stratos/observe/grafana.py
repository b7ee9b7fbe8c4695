"""Dashboards as Grafana's JSON: made from the table, never edited."""

from __future__ import annotations

from typing import Any

from stratos.observe.panels import Dashboard, Panel

SCOPE = 'release=~"$release"'
SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_STAT_WIDTH, _STAT_HEIGHT, _WIDTH, _HEIGHT, _COLUMNS = 6, 5, 12, 8, 24


def grafana_json(dashboard: Dashboard) -> dict[str, Any]:
    """One page; numbers come first, then curves, both from left to right."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["stratosserve"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": _variables()},
        "panels": _placed(dashboard.panels),
    }


def _variables() -> list[dict[str, Any]]:
    query = "label_values(stratos_snapshot_records, release)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "release",
            "type": "query",
            "label": "Release",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "release"},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"selected": True, "text": "All", "value": "$__all"},
        },
    ]


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    x, y, height = 0, 0, 0
    placed = []
    for number, panel in enumerate(sorted(panels, key=lambda panel: panel.kind != "stat"), start=1):
        wide, high = (_STAT_WIDTH, _STAT_HEIGHT) if panel.kind == "stat" else (_WIDTH, _HEIGHT)
        if x + wide > _COLUMNS or (height and high != height):
            x, y = 0, y + height
        height = high
        placed.append(_panel(number, panel) | {"gridPos": {"x": x, "y": y, "w": wide, "h": high}})
        x += wide
    return placed


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    stat = {
        "colorMode": "value",
        "graphMode": "area" if panel.has_trend else "none",
        "showPercentChange": panel.has_trend,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    curves = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "noValue": "no data"}, "overrides": []},
        "options": stat if panel.kind == "stat" else curves,
        "targets": [
            {"refId": chr(65 + i), "datasource": _SOURCE, "expr": query.scoped(SCOPE), "legendFormat": query.legend}
            for i, query in enumerate(panel.queries)
        ],
    }
