"""A walk along the chain of segments: whether each is what was written, and whether all add up to the sums.

Some lines at a time are in memory, and one total for each day of a tenant.  Days that have entries in Redis are in
motion and not compared.  A segment that is appended during the walk is walked, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stratos.common.errors import DependencyDown, NotFound
from stratos.core.ledger.entry import day_of
from stratos.core.ledger.segments import BrokenSegment, SegmentIndex, SegmentRef
from stratos.core.ledger.windows import WINDOW_MEASURES
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import TenantDay, UnsealedEntries
from stratos.store.ledger.usage_reader import UsageReader


@dataclass(slots=True)
class ChainReport:
    """Findings of one walk."""

    num_segments: int = 0
    num_lines: int = 0
    num_days: int = 0
    """Days of tenants whose sums were compared."""
    problems: list[str] = field(default_factory=list)
    """One sentence each, that names the segment, or the tenant and the day."""


class ChainCheck:
    """Walks once.

    Args:
        chain: as Redis knows it.
        segments: where they are.
        unsealed: entries in Redis.
        usage: the sums.
    """

    def __init__(self, chain: Chain, segments: SegmentStore, unsealed: UnsealedEntries, usage: UsageReader) -> None:
        self._chain = chain
        self._segments = segments
        self._unsealed = unsealed
        self._usage = usage
        self._totals: dict[TenantDay, Counter[str]] = {}
        self._previous: SegmentRef | None = None
        self._report = ChainReport()

    async def run(self) -> ChainReport:
        """Walk, and compare sums where all segments are whole.

        Raises:
            DependencyDown: Redis or the object store does not answer.
        """
        report, num_segments = self._report, -1
        different: list[TenantDay] = []
        in_motion: set[TenantDay] = set()
        while num_segments != report.num_segments:
            num_segments = (await self._chain.state()).num_segments
            for number in range(report.num_segments, num_segments):
                await self._walk(number)
            different = await self._different()
            in_motion = set(await self._unsealed.days())
            num_segments = (await self._chain.state()).num_segments
        if not report.problems:
            report.num_days = len(self._totals.keys() - in_motion)
            report.problems += [
                f"tenant {tenant}, day {day}: its segments do not add up to its sums"
                for tenant, day in different
                if (tenant, day) not in in_motion
            ]
        return report

    async def _walk(self, number: int) -> None:
        """One segment; what is wrong with it is noted, and the walk goes on."""
        report = self._report
        report.num_segments += 1
        previous, self._previous = self._previous, None
        try:
            (self._previous,) = await self._chain.refs([number])
        except DependencyDown as error:
            report.problems.append(f"segment {number}: {error.message}")
            return
        ref = self._previous
        try:
            index = await self._segments.checked_index(ref)
            if (
                index.number != number
                or ref.number != number
                or ((previous or not number) and index.previous != previous)
            ):
                report.problems.append(f"segment {number}: it does not follow the one before ({ref.key})")
            await self._segments.check_end(ref)
            await self._add(ref, index)
        except NotFound:
            report.problems.append(f"segment {number}: it is missing ({ref.key})")
        except BrokenSegment as error:
            report.problems.append(f"segment {number}: {error} ({ref.key})")

    async def _add(self, ref: SegmentRef, index: SegmentIndex) -> None:
        for block in index.blocks:
            lines = await self._segments.checked_lines(ref, block)
            for line in lines:
                day = (line.tenant, day_of(line.arrived_ms))
                self._totals.setdefault(day, Counter()).update(line.measures)
            self._report.num_lines += len(lines)

    async def _different(self) -> list[TenantDay]:
        """Days whose sums are others than those of the lines."""
        by_tenant: dict[str, list[str]] = {}
        for tenant, day in sorted(self._totals):
            by_tenant.setdefault(tenant, []).append(day)
        found: list[TenantDay] = []
        for tenant, days in by_tenant.items():
            table = await self._usage.table(tenant, days, ["day"])
            sums = {group.day: _of_lines(counts) for group, counts in table.items()}
            found += [(tenant, day) for day in days if sums.get(day, Counter()) != +self._totals[tenant, day]]
        return found


def _of_lines(counts: Counter[str]) -> Counter[str]:
    """Sums that lines add up to: windows of promises are judged over many lines, and are in none."""
    return +Counter({name: count for name, count in counts.items() if name not in WINDOW_MEASURES})
