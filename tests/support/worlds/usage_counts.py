"""What workers count of ended attempts, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from prometheus_client import Counter

from stratos.common.clock import Clock
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome
from stratos.core.ledger.pricing import Amounts, TokenCounts
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.ledger.violations import add_entry
from stratos.core.requests.records import RequestKey
from stratos.store.ledger.usage_reader import Spans
from stratos.worker.decode.usage_log import UsageLog
from stratos.worker.meters.settings import UsageConfig

TAG = MeterTag(key_id="k1", model="base", route="chat", arrived_unix_ms=1_795_564_800_000)
COUNT = UsageCount(
    key=RequestKey("gen-1", 0), tenant="acme", tag=TAG, num_prompt_tokens=10, num_cached_tokens=4, num_output_tokens=3,
    queue_ns=1, prefill_ns=2, decode_ns=3, device_ns=4_000_000,
)  # fmt: skip

ENTRY = LedgerEntry(
    request_id="gen-1", tenant="acme", plan="premium", tag=TAG, outcome=RequestOutcome.FINISHED,
    counts=TokenCounts(num_prompt=10, num_cached=4, num_output=3), amounts=Amounts(gross=100, cached_discount=20),
)  # fmt: skip
"""What became of ``COUNT``."""


def spans_of(entries: Iterable[LedgerEntry]) -> Spans:
    spans: Spans = {}
    for entry in entries:
        add_entry(spans, entry)
    return spans


def count_of(request_id: str, attempt: int = 0) -> UsageCount:
    return replace(COUNT, key=RequestKey(request_id, attempt))


@dataclass(eq=False)
class Gateway:
    """A session that only hears counts."""

    heard: list[UsageCount] = field(default_factory=list)

    def report(self, counts: list[UsageCount]) -> None:
        self.heard += counts

    def take(self) -> list[RequestKey]:
        heard, self.heard = self.heard, []
        return [count.key for count in heard]


def drop_counter() -> Counter:
    return Counter("dropped", "Dropped counts.", registry=None)


def empty_log(clock: Clock, **config: float) -> UsageLog:
    return UsageLog(clock, UsageConfig(**config), drop_counter())
