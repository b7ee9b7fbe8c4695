"""Amounts and statements as text and as a page of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

MICRO = 1_000_000
_COLUMNS = ("model", "requests", "prompt", "cached", "output", "gross", "discounts", "net", "credit", "due")
_STYLE = (
    "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)


def money(amount: int) -> str:
    """Micro-units as units, exactly: 1500000 is 1.50, 1 is 0.000001."""
    sign, (whole, part) = ("-" if amount < 0 else ""), divmod(abs(amount), MICRO)
    digits = f"{part:06}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"


def micro_units(text: str) -> int:
    """The way back; raises ``ValueError`` for what has more than six decimals."""
    whole, _, part = text.partition(".")
    if not (whole + part).isdecimal() or not whole or len(part) > 6:
        raise ValueError("an amount is written as 12 or 1.50, with at most six decimals")
    return int(whole) * MICRO + int(part.ljust(6, "0"))


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the first one to the left."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


def statement_text(statement: Mapping[str, Any]) -> str:
    """A statement for a terminal."""
    parts = [_title(statement), table_text([_COLUMNS, *_lines(statement)])]
    if windows := _windows(statement):
        parts.append("promised times not kept (UTC):\n" + table_text(windows))
    if title := _missed_title(statement):
        parts.append("\n".join([title, *([table_text(missed)] if (missed := _missed(statement)) else [])]))
    parts.append(f"due: {money(statement['due'])}")
    return "\n\n".join(parts) + "\n"


def statement_html(statement: Mapping[str, Any]) -> str:
    """A statement as one page, which needs nothing else."""
    title = escape(_title(statement))
    windows = _windows(statement)
    broken = f"<h2>Promised times not kept (UTC)</h2>{_table_html(windows)}" if windows else ""
    beyond = ""
    if heading := _missed_title(statement):
        beyond = f"<h2>{escape(heading)}</h2>" + (_table_html(missed) if (missed := _missed(statement)) else "")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"{_table_html([_COLUMNS, *_lines(statement)])}{broken}{beyond}"
        f"<p><strong>Due: {money(statement['due'])}</strong></p></body></html>\n"
    )


def _title(statement: Mapping[str, Any]) -> str:
    return f"Statement of {statement['tenant']} for {statement['month']}"


def _lines(statement: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [_line(line) for line in statement["lines"]]


def _line(line: Mapping[str, Any]) -> tuple[str, ...]:
    discounts = line["gross"] - line["net"]
    counts = (line[name] for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens"))
    amounts = (line["gross"], discounts, line["net"], line["credit"], line["due"])
    name = f"{line['model']} + {line['adapter']}" if line["adapter"] else line["model"]
    kinds = (("replays", "from the response cache"), ("externals", "at the external endpoint"))
    notes = [f"{line[measure]} {text}" for measure, text in kinds if line[measure]]
    if surcharge := line.get("write_surcharge"):  # an older gateway has none
        notes.append(f"{money(surcharge)} of gross for kept prompts")
    if notes:
        name += f" ({', '.join(notes)})"
    return (name, *map(str, counts), *map(money, amounts))


def _windows(statement: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = statement["violation_windows"]
    rows = [
        (
            window["model"], _time(window["begin_unix_ms"]), _time(window["end_unix_ms"]),
            f"{window['num_violations']} of {window['num_requests']}", money(window["credit"]),
        )
        for window in found
    ]  # fmt: skip
    return [("model", "from", "to", "requests", "credit"), *rows] if rows else []


def _missed_title(statement: Mapping[str, Any]) -> str:
    found = statement.get("p99_windows", {})  # an older gateway has none
    if not found.get("missed_windows"):
        return ""
    return (
        f"Windows beyond a promised p99 (UTC), {found['missed_windows']} of {found['windows']}, "
        f"credit {money(found['window_credit'])}"
    )


def _missed(statement: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (
            window["plan"], _time(window["begin_unix_ms"]), _time(window["end_unix_ms"]),
            *(cell for kind in ("ttft", "itl") for cell in _promise(window, kind)), money(window["credit"]),
        )
        for window in statement["p99_windows"]["missed"]
    ]  # fmt: skip
    head = ("plan", "from", "to", "first token late", "p99 ms", "between tokens late", "p99 ms", "credit")
    return [head, *rows] if rows else []


def _promise(window: Mapping[str, Any], kind: str) -> tuple[str, str]:
    p99_us = window[f"{kind}_p99_us"]
    shown = "-" if p99_us is None else f"{p99_us / 1000:.1f}"
    return f"{window[f'num_{kind}_over']} of {window[f'num_{kind}']}", shown


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _table_html(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><tr>{head}</tr>{body}</table>"
