"""Receipts on their way into the store: in batches, beside the requests; while Redis is away the latest are kept."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import day_of
from stratos.core.ledger.receipt import RequestReceipt, claimed_receipt
from stratos.core.ledger.usage import UsageCount

_log = logging.getLogger(__name__)
MAX_PENDING = 4096
"""Receipts in memory; a further one takes the place of the oldest."""
MAX_REFUSALS_PER_S = 50
"""Receipts of requests that were refused: a client that floods does not push out those of others."""
_BATCH = 128


class ReceiptSink(Protocol):
    """Where receipts are; ``store.ledger.ReceiptStore`` is the one of a gateway."""

    async def put(self, receipts: Sequence[RequestReceipt]) -> None:
        """Write receipts; raises ``DependencyDown``."""
        ...


class ReceiptDesk:
    """Belongs to the event loop.

    Args:
        store: of all gateways.
        interval_s: between two writes.
    """

    def __init__(self, store: ReceiptSink, interval_s: float) -> None:
        self._store = store
        self._interval_s = interval_s
        self._pending: deque[RequestReceipt] = deque(maxlen=MAX_PENDING)
        self._second, self._num_refusals = 0, 0

    def put(self, receipt: RequestReceipt) -> None:
        """Write a receipt in a moment."""
        self._pending.append(receipt)

    def put_claim(self, count: UsageCount) -> None:
        """Write the receipt of a request whose gateway died; one that it wrote itself stays."""
        if count.tag.http_request_id:
            self.put(claimed_receipt(count, day_of(count.tag.arrived_unix_ms)))

    def takes_refusal(self, now_s: float) -> bool:
        """Whether one more refused request of this second gets a receipt."""
        if int(now_s) != self._second:
            self._second, self._num_refusals = int(now_s), 0
        self._num_refusals += 1
        return self._num_refusals <= MAX_REFUSALS_PER_S

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.turn()

    async def turn(self) -> None:
        """Write what is there; what cannot be written stays, up to a bound."""
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            try:
                await self._store.put(batch)
            except asyncio.CancelledError:  # the process ends, and its last turn writes them
                self._pending.extendleft(reversed(batch))
                raise
            except (DependencyDown, RedisError) as error:
                _log.debug("receipts are written later: %s", error)
                self._pending.extendleft(reversed(batch))
                return
