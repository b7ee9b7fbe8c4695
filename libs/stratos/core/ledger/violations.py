"""Windows in which promised times were not kept, from sums over spans of five minutes: a month of them is small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratos.core.ledger.entry import GROUP_SEPARATOR, LedgerEntry

WINDOW_MS = 5 * 60 * 1000
"""One span; the store's script has the same number."""
SpanSums = Mapping[tuple[str, int], Mapping[str, int]]
"""Model and number of the span -> ``promises``, ``violations`` and ``credit``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationWindow:
    """Neighbouring spans of five minutes in each of which some promised time was not kept."""

    model: str
    begin_unix_ms: int
    end_unix_ms: int
    num_requests: int
    """Requests with a promise, within the window."""
    num_violations: int
    credit: int
    """Micro-units."""


def add_entry(spans: dict[tuple[str, int], Counter[str]], entry: LedgerEntry) -> None:
    """Add an entry to sums, if it was promised something."""
    if entry.is_kept is not None:
        sums = spans.setdefault((entry.tag.model, entry.tag.arrived_unix_ms // WINDOW_MS), Counter())
        sums.update(promises=1, violations=int(not entry.is_kept), credit=entry.amounts.credit)


def spans_of_day(stored: Mapping[str, str]) -> dict[tuple[str, int], Counter[str]]:
    """Sums as they are stored: ``model + separator + span + separator + measure`` -> number.

    Raises:
        ValueError: something else is there.
    """
    spans: dict[tuple[str, int], Counter[str]] = {}
    for name, value in stored.items():
        model, number, measure = name.split(GROUP_SEPARATOR)
        spans.setdefault((model, int(number)), Counter())[measure] += int(value)
    return spans


def violation_windows(spans: SpanSums) -> list[ViolationWindow]:
    """Where promised times were not kept, by model, in order of time."""
    windows: list[list[tuple[str, int]]] = []
    for model, number in sorted(span for span, sums in spans.items() if sums.get("violations")):
        if windows and windows[-1][-1] == (model, number - 1):
            windows[-1].append((model, number))
        else:
            windows.append([(model, number)])
    return [_window(window, [spans[span] for span in window]) for window in windows]


def _window(names: Sequence[tuple[str, int]], sums: Sequence[Mapping[str, int]]) -> ViolationWindow:
    return ViolationWindow(
        model=names[0][0],
        begin_unix_ms=names[0][1] * WINDOW_MS,
        end_unix_ms=(names[-1][1] + 1) * WINDOW_MS,
        num_requests=sum(one.get("promises", 0) for one in sums),
        num_violations=sum(one.get("violations", 0) for one in sums),
        credit=sum(one.get("credit", 0) for one in sums),
    )
