"""Promises of the platform, and what the scenarios that try them have shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Row(Protocol):
    """A scenario, as far as promises look at it."""

    @property
    def scenario(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def different(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def longest_gap_s(self) -> float: ...
    @property
    def is_felt(self) -> bool: ...
    @property
    def had_effect(self) -> bool: ...
    @property
    def passed(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPromise:
    """Promise about scenarios whose name matches."""

    text: str
    pattern: str
    max_gap_s: float | None = None
    """Longest pause of a stream; on a machine with cores left for it."""


_FAULT = r"[a-z-]+ [\w.-]+"
_LOST = "(kill|stop|slow|reset|partition)"
PROMISES = (
    ChaosPromise(text="SIGKILL of a decode worker changes no stream", pattern=r"kill decode-\d+", max_gap_s=1.0),
    ChaosPromise(text="a decode worker that hangs changes no stream", pattern=r"stop decode-\d+", max_gap_s=3.0),
    ChaosPromise(text="a drain of a decode worker changes no stream", pattern=r"drain decode-\d+", max_gap_s=0.3),
    ChaosPromise(text="a slow decode worker changes no stream", pattern=r"slow decode-\d+"),
    ChaosPromise(text="cut connections of a decode worker change no stream", pattern=r"reset decode-\d+"),
    ChaosPromise(
        text="a decode worker that is cut off changes no stream", pattern=r"partition decode-\d+", max_gap_s=3.0
    ),
    ChaosPromise(text="KV that is damaged on its way changes no stream", pattern=r"corrupt (decode|prefill)-\d+"),
    ChaosPromise(
        text="KV that is damaged at rest in host memory changes no stream", pattern=r"corrupt-tier (decode|prefill)-\d+"
    ),
    ChaosPromise(
        text="KV that is damaged at rest on disk changes no stream", pattern=r"corrupt-disk (decode|prefill)-\d+"
    ),
    ChaosPromise(text="no room on disk changes no stream", pattern=r"full-disk [\w-]+"),
    ChaosPromise(text="a decode worker that gets no more memory changes no stream", pattern=r"memory decode-\d+"),
    ChaosPromise(
        text="a prefill worker that dies, hangs, is slow or cut off is not seen", pattern=rf"{_LOST} prefill-\d+"
    ),
    ChaosPromise(text="a router that dies, hangs, is slow or cut off costs no request", pattern=rf"{_LOST} router-\d+"),
    ChaosPromise(
        text="clients that come back lose nothing with a gateway",
        pattern=r"(kill|stop|reset|drain|partition|cut-redis|cut-workers) gateway-\d+",
    ),
    ChaosPromise(text="a process whose clock is an hour ahead changes no stream", pattern=r"clock [\w-]+"),
    ChaosPromise(text="streams go on without Redis", pattern=rf"{_LOST} redis"),
    ChaosPromise(text="streams go on without the object store", pattern=r"gone object-store"),
    ChaosPromise(text="streams go on without registry and autoscaler", pattern=rf"{_LOST} (lora-registry|autoscaler)"),
    ChaosPromise(text="a node that is drained changes no stream", pattern=r"drain-node [\w.-]+"),
    ChaosPromise(text="several faults at once change no stream", pattern=rf"{_FAULT}( and {_FAULT})+"),
    ChaosPromise(text="bills are what clients got, whatever ends", pattern=r"money: .+"),
    ChaosPromise(text="streams go on ten minutes without Redis and objects", pattern=r"redis and object store gone"),
    ChaosPromise(
        text="an emptied Redis changes no stream, and its new keys open nothing", pattern=r"redis back empty, .+"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Outcome of the scenarios that try a promise."""

    promise: ChaosPromise
    num_scenarios: int
    num_streams: int = 0
    num_broken: int = 0
    """Streams that differ or failed."""
    num_failed_scenarios: int = 0
    """Without those that had no effect."""
    num_without_effect: int = 0
    kinds: tuple[str, ...] = ()
    """Faults by which it was tried."""
    num_felt: int = 0
    longest_gap_s: float = 0.0

    @property
    def verdict(self) -> str:
        """Kept, broken, without effect in some scenario, late, not felt by any worker, or not tried."""
        if not self.num_scenarios:
            return "not tried"
        if self.num_broken or self.num_failed_scenarios:
            return "**broken**"
        if self.num_without_effect:
            return "no effect"
        if not self.num_felt:
            return "not felt"
        is_late = self.promise.max_gap_s is not None and self.longest_gap_s > self.promise.max_gap_s
        return "kept, late" if is_late else "kept"


def observed_promises(rows: Sequence[Row]) -> list[Observed]:
    """All promises, with the rows that try each; bounds of gaps are for one fault at a time."""
    names = {promise: re.compile(promise.pattern) for promise in PROMISES}
    return [_observed(one, [row for row in rows if name.fullmatch(row.scenario)]) for one, name in names.items()]


def _observed(promise: ChaosPromise, rows: Sequence[Row]) -> Observed:
    return Observed(
        promise=promise,
        num_scenarios=len(rows),
        num_streams=sum(row.streams for row in rows),
        num_broken=sum(row.different + row.failed for row in rows),
        num_felt=sum(row.is_felt for row in rows),
        num_failed_scenarios=sum(not row.passed and row.had_effect for row in rows),
        num_without_effect=sum(not row.had_effect for row in rows),
        kinds=tuple(sorted({kind for row in rows for kind in _kinds(row.scenario)})),
        longest_gap_s=max((row.longest_gap_s for row in rows), default=0.0),
    )


def _kinds(scenario: str) -> Iterator[str]:
    """Kinds of the faults in the name of a scenario; one with a name of its own has none."""
    for part in scenario.removeprefix("money: ").split(" and "):
        if re.fullmatch(_FAULT, part):
            yield part.split()[0]


def promise_table(observed: Iterable[Observed]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| promise | held | scenarios | faults | streams | broken | longest gap | bound |", f"{'|---' * 8}|"]
    for one in observed:
        bound = "-" if one.promise.max_gap_s is None else f"{one.promise.max_gap_s:g} s"
        cells = (
            one.promise.text, one.verdict, one.num_scenarios, ", ".join(one.kinds) or "-", one.num_streams,
            one.num_broken, f"{one.longest_gap_s:.1f} s" if one.num_scenarios else "-", bound,
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines
