"""Texts of a row that both renderers show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.calculators.formula import plain
from stratos.calculators.sheet import quantity
from stratos.reproduce.catalogue import ROWS
from stratos.reproduce.record.answer import FigureKind

_PAIRED = frozenset(row.name for row in ROWS if row.is_paired)
ANSWER_COLUMNS = ("claim", "published claim", "claimed", "recomputed", "ours", "verdict")


def answer_cells(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """One claim as a row of the table of answers."""
    recomputed, own = answer["recomputed"], answer["own"]
    return (
        answer["claim"],
        answer["quoted"],
        answer["claimed"],
        "" if recomputed is None else _recomputed_text(recomputed),
        "" if own is None else own_text(own),
        answer["verdict"],
    )


def _recomputed_text(figure: Mapping[str, Any]) -> str:
    limit = "at most " if figure["is_bound"] else ""
    return f"{limit}{quantity(figure['name'], figure['value'])} = {figure['formula']} = {figure['numbers']}"


def own_text(own: Mapping[str, Any]) -> str:
    """Our figure with its name, its kind and its conditions."""
    how = f"; {own['how']}" if own["how"] else ""
    return f"{quantity(own['name'], own['value'])} ({own['name']}, {own['kind']}{how})"


def table_cells(table: Mapping[str, Any]) -> list[list[str]]:
    """Cells as text."""
    return [[cell if isinstance(cell, str) else plain(cell) for cell in row] for row in table["rows"]]


def origin_text(document: Mapping[str, Any]) -> str:
    """Where the row's figures come from."""
    environment, run, threads = document["environment"], document["run"], document["threads"]
    if "gpu" in environment:
        read = f", read from {environment['file']}" if environment.get("file") else ""
        return (
            f"{run['duration_s']} s on one {environment['gpu']}, driver {environment.get('driver', 'unknown')}, torch "
            f"{environment['torch']}, {environment['utc']}, commit {environment['commit']}{read}"
        )
    effect = (
        "which slows both of a pair and widens the intervals"
        if document["name"] in _PAIRED
        else "so nothing measured here is comparable"
    )
    loaded = f"; others took {run['foreign_share']:.0%} of the machine, {effect}"
    bound = f" (at most {document['bound_minutes']:g} minutes)" if document.get("bound_minutes") else ""
    return (
        f"{document['form']} form{bound}, seed {document['seed']}, {threads} thread{'s' * (threads != 1)}, "
        f"{run['duration_s']} s on {environment['cores']} cores of {environment['cpu'] or 'an unknown processor'}, "
        f"{environment['utc'] + ', ' if 'utc' in environment else ''}"
        f"commit {environment['commit'] or 'unknown'}{loaded if run['loaded'] and is_measured(document) else ''}"
    )


def is_measured(document: Mapping[str, Any]) -> bool:
    """Some figure of the row depends on the machine."""
    owns = [answer["own"] for answer in document["answers"] if answer["own"] is not None]
    return any(part["kind"] == FigureKind.MEASURED for part in (*owns, *document["tables"], *document["plots"]))


def is_disturbed(document: Mapping[str, Any]) -> bool:
    """Others used the machine while a figure was measured that depends on it, and that is no difference of a pair."""
    return bool(document["run"]["loaded"]) and document["name"] not in _PAIRED and is_measured(document)


def plot_file(name: str, number: int) -> str:
    """Path of a plot below the report's folder."""
    return f"plots/{name}-{number}.svg"
