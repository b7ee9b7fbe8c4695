"""Sums per tenant and day, and how days and groups are put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stratos.core.ledger.entry import GROUP_SEPARATOR, summed_key
from stratos.core.ledger.windows import WINDOW_MEASURES
from stratos.core.requests.pins import WRITE_COUNTS

WRITE_MEASURES = (*WRITE_COUNTS, "write_surcharge")
"""What is kept for clients; ``write_surcharge`` is part of ``gross``."""
MEASURES = (
    "requests", "replays", "externals", "prompt_tokens", "cached_tokens", "output_tokens", "device_us",
    "gross", "cached_discount", "batch_discount", "replay_discount", "credit", "promises", "violations",
    *WINDOW_MEASURES, *WRITE_MEASURES,
)  # fmt: skip
"""In the order of files and tables, those of tenants included. Amounts are micro-units. ``external_cost`` is added up
as well: what the platform pays is for its admins alone. Those of windows are of no model, adapter or key."""
_DISCOUNTS = ("cached_discount", "batch_discount", "replay_discount")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class UsageGroup:
    """Group that a sum is over; an empty text stands for all."""

    day: str = ""
    """UTC, as 2026-11-22."""
    model: str = ""
    """Base model."""
    adapter: str = ""
    key_id: str = ""
    tags: tuple[str, ...] = ()
    """Texts of the cost tags that are grouped by; empty where a request has none of the name."""


Sums = Mapping[str, int]
"""Measure -> value; measures that are 0 may be left out."""
UsageTable = Mapping[UsageGroup, Sums]


def net_of(sums: Sums) -> int:
    """Charge before credits; micro-units."""
    return sums.get("gross", 0) - sum(sums.get(name, 0) for name in _DISCOUNTS)


def due_of(sums: Sums) -> int:
    """Amount to be paid; micro-units."""
    return net_of(sums) - sums.get("credit", 0) - sums.get("window_credit", 0)


def table_of_day(day: str, stored: Mapping[str, str]) -> dict[UsageGroup, Counter[str]]:
    """The sums of one day as they are stored: ``group + separator + measure`` -> number.

    Raises:
        ValueError: something else is there.
    """
    by_name: dict[str, Counter[str]] = {}
    for name, value in stored.items():
        group_name, _, measure = name.rpartition(GROUP_SEPARATOR)
        by_name.setdefault(group_name, Counter())[measure] += int(value)
    table: dict[UsageGroup, Counter[str]] = {}
    for group_name, sums in by_name.items():
        model, adapter, key_id = group_name.split(GROUP_SEPARATOR)
        group = UsageGroup(day=day, model=model, adapter=adapter, key_id=summed_key(key_id))
        table.setdefault(group, Counter()).update(sums)
    return table


def regroup(tables: Iterable[UsageTable], key: Callable[[UsageGroup], UsageGroup]) -> dict[UsageGroup, Counter[str]]:
    """Tables put together, groups with the same ``key`` added up, in order."""
    found: dict[UsageGroup, Counter[str]] = {}
    for table in tables:
        for group, sums in table.items():
            found.setdefault(key(group), Counter()).update(sums)
    return dict(sorted(found.items()))


def keep_fields(*names: str) -> Callable[[UsageGroup], UsageGroup]:
    """A ``key`` for ``regroup``: by these fields alone."""
    return lambda group: UsageGroup(**{name: getattr(group, name) for name in names})
