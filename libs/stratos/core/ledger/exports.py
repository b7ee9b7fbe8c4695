"""Usage and entries as rows of files and answers: plain values, the same columns everywhere."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratos.core.ledger.costs import ModelCost
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.statement import Statement
from stratos.core.ledger.sums import MEASURES, WRITE_MEASURES, Sums, UsageTable, due_of, net_of
from stratos.core.ledger.windows import WINDOW_MEASURES, PromiseWindow

GROUP_COLUMNS = ("day", "model", "adapter", "key_id")
ENTRY_COLUMNS = (
    "request_id", "http_request_id", "tenant", "key_id", "plan", "model", "model_size", "adapter", "route", "outcome",
    "arrived_unix_ms", "prompt_tokens", "cached_tokens", "output_tokens", "queue_us", "prefill_us", "decode_us",
    "device_us", "ttft_us", "itl_us", "is_kept", "gross", "cached_discount", "batch_discount", "replay_discount",
    "net", "credit", "due", "is_external", "external_cost", "cost_tags", "revision", *WRITE_MEASURES,
)  # fmt: skip
"""New ones stand behind all others, for readers that go by their number; so do those of ``SUM_COLUMNS``."""
SUM_COLUMNS = (*(name for name in MEASURES if name not in WRITE_MEASURES), "net", "due", *WRITE_MEASURES)
TAG_PREFIX = "tag:"
"""Before the name of a cost tag, among columns."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def sums_row(sums: Sums) -> dict[str, int]:
    """Every measure, and what follows from them."""
    return {name: sums.get(name, 0) for name in MEASURES} | {"net": net_of(sums), "due": due_of(sums)}


def usage_rows(table: UsageTable, columns: Sequence[str] = GROUP_COLUMNS) -> list[dict[str, Any]]:
    """One row per group. Windows of promised p99s are of no model, adapter and key: a row of theirs has a credit.

    Args:
        table: grouped by ``columns``.
        columns: of ``GROUP_COLUMNS``, and cost tags behind ``TAG_PREFIX``.
    """
    plain, tags = [c for c in columns if c in GROUP_COLUMNS], [c for c in columns if c.startswith(TAG_PREFIX)]
    shown = ((group, sums) for group, sums in table.items() if sums.get("requests") or sums.get("window_credit"))
    return [
        {name: getattr(group, name) for name in plain} | dict(zip(tags, group.tags, strict=True)) | sums_row(sums)
        for group, sums in shown
    ]


def entry_row(entry: LedgerEntry, *, for_admin: bool = True) -> dict[str, Any]:
    """One entry, in ``ENTRY_COLUMNS``; without ``for_admin`` it does not say what the platform paid."""
    parts = (entry, entry.tag, entry.stages, entry.times, entry.amounts)
    counts = entry.counts
    known = {
        "prompt_tokens": counts.num_prompt,
        "cached_tokens": counts.num_cached,
        **counts.writes.counts,
        "output_tokens": counts.num_output,
        "outcome": entry.outcome.value,
        "external_cost": entry.external_cost if for_admin else None,
        "cost_tags": json.dumps(dict(entry.tag.cost_tags), ensure_ascii=False) if entry.tag.cost_tags else "",
    }
    return {
        name: known[name] if name in known else next(getattr(part, name) for part in parts if hasattr(part, name))
        for name in ENTRY_COLUMNS
    }


def statement_json(statement: Statement) -> dict[str, Any]:
    """A statement as JSON; amounts are micro-units."""
    lines = [{"model": line.model, "adapter": line.adapter, **sums_row(line.sums)} for line in statement.lines]
    windows = [{name: getattr(window, name) for name in window.__dataclass_fields__} for window in statement.windows]
    promised = {name: statement.window_sums.get(name, 0) for name in WINDOW_MEASURES}
    return {
        "tenant": statement.tenant, "month": statement.month, "lines": lines, "violation_windows": windows,
        "p99_windows": {**promised, "missed": [_missed_row(window) for window in statement.missed]},
        "due": statement.due,
    }  # fmt: skip


def _missed_row(window: PromiseWindow) -> dict[str, Any]:
    names = (
        "plan", "begin_unix_ms", "end_unix_ms", "num_ttft", "num_ttft_over", "num_itl", "num_itl_over", "ttft_p99_us",
        "itl_p99_us", "credit",
    )  # fmt: skip
    return {name: getattr(window, name) for name in names}


def cost_rows(costs: Iterable[ModelCost], tags: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Cost and margin per model, and by the texts of these cost tags; amounts are micro-units."""
    names = (
        "model", "num_tokens", "device_us", "earned", "device_cost", "external_cost", "cost", "margin",
        "cost_per_million", "earned_per_million",
    )  # fmt: skip
    columns = [TAG_PREFIX + name for name in tags]
    return [
        {name: getattr(cost, name) for name in names}
        | dict(zip(columns, cost.tags or [""] * len(columns), strict=True))
        for cost in costs
    ]


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, has_head: bool = True) -> str:
    """Rows as CSV; a text that a spreadsheet would take for a formula gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if has_head:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in columns])
    return file.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
