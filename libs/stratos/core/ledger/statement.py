"""A tenant's month: lines by model and adapter, times that were not kept, and what is to be paid."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratos.core.ledger.sums import Sums, UsageGroup, UsageTable, due_of, keep_fields, net_of, regroup
from stratos.core.ledger.violations import ViolationWindow
from stratos.core.ledger.windows import PromiseWindow

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
    window_sums: Sums
    """Windows with a promised p99, those that missed it, and their credit."""
    missed: tuple[PromiseWindow, ...]

    @property
    def window_credit(self) -> int:
        """Credit of windows that missed a promised p99, micro-units."""
        return self.window_sums.get("window_credit", 0)

    @property
    def due(self) -> int:
        """Amount to be paid: the sum of the lines without the credit of windows, in micro-units."""
        return sum(line.due for line in self.lines) - self.window_credit


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
    tenant: str,
    month: str,
    tables: Iterable[UsageTable],
    windows: Sequence[ViolationWindow],
    missed: Sequence[PromiseWindow] = (),
) -> Statement:
    """The statement of a month from the tables of its days.

    Args:
        tenant: label.
        month: as 2026-11.
        tables: sums of its days.
        windows: in which promises to single requests were not kept.
        missed: windows that missed a promised p99.
    """
    by_model = regroup(tables, keep_fields("model", "adapter"))
    window_sums = by_model.pop(UsageGroup(), Counter())
    lines = (StatementLine(model=group.model, adapter=group.adapter, sums=sums) for group, sums in by_model.items())
    return Statement(
        tenant=tenant,
        month=month,
        lines=tuple(lines),
        windows=tuple(windows),
        window_sums=window_sums,
        missed=tuple(missed),
    )
