"""A tenant's month: lines by model and adapter, times that were not kept, and what is to be paid."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratos.core.ledger.sums import Sums, UsageTable, due_of, keep_fields, net_of, regroup
from stratos.core.ledger.violations import ViolationWindow

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """Use of one model or adapter by a tenant in a month."""

    model: str
    adapter: str
    sums: Sums

    @property
    def net(self) -> int:
        """Charge before credits; micro-units."""
        return net_of(self.sums)

    @property
    def due(self) -> int:
        """Micro-units."""
        return due_of(self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One tenant, one month of UTC."""

    tenant: str
    month: str
    lines: tuple[StatementLine, ...]
    windows: tuple[ViolationWindow, ...]

    @property
    def due(self) -> int:
        """Amount to be paid: the sum of the lines, in micro-units."""
        return sum(line.due for line in self.lines)


def days_of(month: str) -> list[str]:
    """All days of a month such as 2026-11, in order.

    Raises:
        ValueError: not a month.
    """
    match = _MONTH.fullmatch(month)
    if match is None:
        raise ValueError("a month is written as 2026-11")
    num_days = calendar.monthrange(int(match[1]), int(match[2]))[1]
    return [f"{month}-{day:02}" for day in range(1, num_days + 1)]


def make_statement(
    tenant: str, month: str, tables: Iterable[UsageTable], windows: Sequence[ViolationWindow]
) -> Statement:
    """The statement of a month from the tables of its days."""
    by_model = regroup(tables, keep_fields("model", "adapter"))
    lines = (StatementLine(model=group.model, adapter=group.adapter, sums=sums) for group, sums in by_model.items())
    return Statement(tenant=tenant, month=month, lines=tuple(lines), windows=tuple(windows))
