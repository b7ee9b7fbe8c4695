"""Records of a dashboard's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["short", "s", "percentunit", "bytes", "Bps", "reqpm", "watt", "celsius"]
Kind = Literal["timeseries", "stat"]
SCOPE = "@"
WINDOW = "$__rate_interval"
"""Grafana's: long enough for a rate at the chosen resolution."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line of a panel, or several that differ in their labels."""

    expr: str
    legend: str = ""
    """``{{label}}`` stands for a label's value."""

    def scoped(self, scope: str, window: str = WINDOW) -> str:
        """The query over some releases, with rates over ``window``."""
        return self.expr.replace(SCOPE, scope).replace(WINDOW, window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    text: str
    """Meaning of the panel, and what to do about it."""
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "timeseries"
    has_trend: bool = False
    """A number shows how it changed over the chosen time."""
    needs_gpu: bool = False
    """Its series come from NVML: without a GPU it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def quantiles(name: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """Three quantiles of a histogram; ``by`` are labels that stay apart, ``legend`` what tells them apart."""
    group = f"{by}, le" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({q}, sum by ({group}) (rate({name}_bucket{{@}}[{WINDOW}])))", f"p{p} {legend}".strip()
        )
        for q, p in ((0.5, 50), (0.95, 95), (0.99, 99))
    )


def rate(name: str, by: str = "", where: str = "") -> str:
    """Increase of a counter in a second."""
    scope = f"@, {where}" if where else "@"
    return f"sum{f' by ({by})' if by else ''} (rate({name}{{{scope}}}[{WINDOW}]))"
