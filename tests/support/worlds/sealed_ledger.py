"""A ledger over a real Redis and a folder of segments, whose sealer dies wherever a test wants it to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome, StageTimes
from stratos.core.ledger.pricing import Amounts
from stratos.core.ledger.segments import SegmentLine, SegmentRef
from stratos.store.ledger.chain import Chain, ChainState
from stratos.store.ledger.entry_reader import EntryReader
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.sealer import Sealer, SealLimits
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import UnsealedEntries
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.local_store import LocalStore
from stratos.store.records.settings import RecordStoreConfig
from tests.support.worlds.usage_counts import ENTRY, TAG

CONFIG = RecordStoreConfig()
ACME, BRAVO = "tn_" + "a" * 20, "tn_" + "b" * 20
START_MS = TAG.arrived_unix_ms
HOUR_MS = 3_600_000


class Crash(Exception):
    """The sealer's process is gone."""


@dataclass
class Fuse:
    """Burns through at a step: before it, or after it was done."""

    left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            if self.left == 0:
                self.left = None
                raise Crash
            self.left -= 1


class FusedStore(LocalStore):
    def __init__(self, root: Path, fuse: Fuse) -> None:
        super().__init__(root)
        self._fuse = fuse

    async def put(self, key: str, path: Path) -> None:
        self._fuse.burn()
        await super().put(key, path)
        self._fuse.burn()


class FusedChain(Chain):
    fuse: Fuse

    async def append(self, state: ChainState, *args: Any) -> bool:
        self.fuse.burn()
        is_next = await super().append(state, *args)
        self.fuse.burn()
        return is_next

    async def clear(
        self, number: int, lines: Mapping[tuple[str, str], Sequence[SegmentLine]], ref: SegmentRef | None = None
    ) -> None:
        for day, found in lines.items():
            for line in found:
                self.fuse.burn()
                await super().clear(number, {day: [line]}, ref)

    async def note(self, name: str, value: int) -> None:
        self.fuse.burn()
        await super().note(name, value)


@dataclass
class SealedLedger:
    """Everything of one ledger; ``sealers`` are those of two gateways."""

    redis: Redis
    folder: Path
    limits: SealLimits = field(default_factory=lambda: SealLimits(older_days=2))
    fuse: Fuse = field(default_factory=Fuse)
    clock: FakeClock = field(default_factory=lambda: FakeClock(START_MS / 1000))

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.segments = SegmentStore(FusedStore(self.folder, self.fuse))
        self.store = LedgerStore(self.redis, CONFIG, segments=self.segments)
        self.usage = UsageReader(self.redis, CONFIG, segments=self.segments)
        self.reader = EntryReader(self.redis, CONFIG, self.segments)
        self.chain = FusedChain(self.redis, CONFIG)
        self.chain.fuse = self.fuse
        self.unsealed = UnsealedEntries(self.redis, CONFIG)
        self.sealers = [self.sealer(name) for name in ("g-0", "g-1")]

    def sealer(self, name: str) -> Sealer:
        segments = SegmentStore(FusedStore(self.folder, self.fuse))
        return Sealer(self.unsealed, self.chain, segments, self.limits, name, self.clock.now)

    async def sums(self, tenant: str, day: str) -> Counter[str]:
        """As statements have them."""
        found = await self.usage.table(tenant, [day], ())
        return +next(iter(found.values()), Counter())

    async def sealed_lines(self) -> list[SegmentLine]:
        """All lines of the chain, in their order."""
        state = await self.chain.state()
        refs = await self.chain.refs(range(state.num_segments))
        return [line for ref in refs async for part in self.segments.all_lines(ref) for line in part]

    async def entries(self, tenant: str, day: str, limit: int = 500) -> list[LedgerEntry]:
        """All pages of a day."""
        found, page = [], await self.reader.page(tenant, day, limit=limit)
        while page.following is not None:
            found += page.entries
            page = await self.reader.page(tenant, day, page.following, limit)
        return found + page.entries

    async def check(self, days: Iterable[tuple[str, str]]) -> None:
        """Entries and sums tell the same; so do segments with what is in Redis alone."""
        lines = await self.sealed_lines()
        last = {(line.tenant, line.place): line.text for line in lines}
        for tenant, day in days:
            sums = await self.sums(tenant, day)
            shown = await self.entries(tenant, day, limit=3)
            places = [(one.tag.arrived_unix_ms, one.request_id) for one in shown]
            assert places == sorted(set(places)), "in order, each once"
            assert sum((Counter(one.measures) for one in shown), Counter[str]()) == sums
            total = Counter[str]()
            for line in lines:
                if line.tenant == tenant and line.entry.day == day:
                    total.update(line.measures)
            async for part in self.unsealed.lines(tenant, day, 1 << 50):
                for line in part:
                    sealed = last.get((tenant, line.place), "")
                    total.update(replace(line, corrects=sealed).measures)
            assert +total == sums, "lines and corrections add up to the sums"


def entry(
    number: int, tenant: str = ACME, *, ms: int = START_MS, gross: int = 100, rank: int = 1_000_000
) -> LedgerEntry:
    """An entry of the request of a number; ranks below the highest are claims of an attempt."""
    outcome = RequestOutcome.FINISHED if rank == ENTRY.rank else RequestOutcome.RECOVERED
    attempt = (rank % 10, 10 * (rank % 10) + 5)
    return replace(
        ENTRY, request_id=f"gen-{number}", tenant=tenant, tag=replace(TAG, arrived_unix_ms=ms), rank=rank,
        amounts=Amounts(gross=gross), outcome=outcome, is_kept=number % 3 != 0,
        stages=StageTimes(device_us=attempt[1], by_attempt=(attempt,)),
        prefix_hashes="k5Vt+/aB" if rank == ENTRY.rank else "",
    )  # fmt: skip
