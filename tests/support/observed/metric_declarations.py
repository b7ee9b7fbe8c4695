"""Every metric that the services declare: name on the wire, type, labels, help, and who shows it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratos.rpc.instruments import MetricRow, rows_of

SECTIONS = {
    "stratos.rpc": "All services",
    "stratos.worker": "Workers",
    "stratos_gateway": "Gateway",
    "stratos_router": "Router",
    "stratos_autoscaler": "Autoscaler",
}
"""Sections of docs/metrics.md, by the package of the tables that they list."""


@dataclasses.dataclass(frozen=True)
class Declared:
    """One family."""

    section: str
    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def declared_metrics() -> list[Declared]:
    """Rows of every table, in every module that has one."""
    return [
        _declared(section, row)
        for package, section in SECTIONS.items()
        for name in _tables(package)
        for row in rows_of(vars(importlib.import_module(name)))
    ]


def _tables(package: str) -> Iterator[str]:
    """Names of a package's modules that declare rows."""
    (folder,) = map(Path, importlib.import_module(package).__path__)
    for path in sorted(folder.rglob("*.py")):
        if "from stratos.rpc.instruments import" in path.read_text():
            yield ".".join((package, *path.relative_to(folder).with_suffix("").parts))


def _declared(section: str, row: MetricRow[Any]) -> Declared:
    kind = row.type_name
    return Declared(section, row.name + "_total" if kind == "counter" else row.name, kind, row.labels, row.text)
