"""Receipts on their way into the store: in batches, beside the requests; while Redis is away the latest are kept."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import OWN_RANK, LedgerEntry
from stratos.core.ledger.receipt import RequestReceipt, entry_receipts

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
        self._turns = asyncio.Lock()
        """One at a time: entries wait for receipts that are on their way already."""

    def put(self, receipt: RequestReceipt) -> None:
        """Write a receipt in a moment."""
        self._pending.append(receipt)

    async def before_entries(self, has_ended: bool, entries: Sequence[LedgerEntry]) -> None:
        """Write what is there before the ledger gets these entries, and workers forget what they counted for them.

        Args:
            has_ended: these requests have ended here, and their receipts were put. Others, and those that go on, get
                the receipts that their entries make; one that a gateway wrote itself stays.
            entries: of any requests.
        """
        await self.turn()
        made = entry_receipts(entry for entry in entries if not has_ended or entry.rank < OWN_RANK)
        try:
            await self._write(made)
        except (DependencyDown, RedisError) as error:  # the ledger takes these entries no more than this, and waits
            _log.debug("receipts are made again with their entries: %s", error)

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
        async with self._turns:
            await self._write_pending()

    async def _write_pending(self) -> None:
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            try:
                await self._write(batch)
            except asyncio.CancelledError:  # the process ends, and its last turn writes them
                self._put_back(batch)
                raise
            except (DependencyDown, RedisError) as error:
                _log.debug("receipts are written later: %s", error)
                self._put_back(batch)
                return

    def _put_back(self, batch: Sequence[RequestReceipt]) -> None:
        """Keep them before the others; of too many these go first, as the oldest."""
        self._pending = deque((*batch, *self._pending), MAX_PENDING)

    async def _write(self, receipts: Sequence[RequestReceipt]) -> None:
        if receipts:
            await self._store.put(receipts)
