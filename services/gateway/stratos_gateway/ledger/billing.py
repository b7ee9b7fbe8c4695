"""All that gets requests into the ledger, put together for one gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self

from stratos.common.clock import Clock
from stratos.core.tenancy.plan import Plan
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.ledger.spool import Spool
from stratos.store.ledger.window_store import WindowStore
from stratos_gateway.ledger.budgets import Budgets
from stratos_gateway.ledger.claims import WorkerSearch
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.promise_windows import PromiseWindows
from stratos_gateway.ledger.readings import UsageReadings
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.ledger.writer import LedgerWriter, Told
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.receipts.desk import ReceiptDesk
from stratos_gateway.sessions.pool import SessionPool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAccess:
    """The ledger, and who is billed."""

    store: LedgerStore
    plan_of: Callable[[str], Plan | None]
    """The plan of a tenant by its id; ``None`` where there is no such tenant any more. Raises ``DependencyDown``
    before tenants are known."""
    receipts: ReceiptStore | None = None
    """Where receipts of requests are; ``None`` keeps none."""
    windows: WindowStore | None = None
    """Windows of promised p99s; ``None`` shows none in metrics."""
    name_of: Callable[[str], str | None] = lambda _: None
    """Name of a tenant by its id, if there is one."""
    readings: UsageReadings | None = None
    """Questions of tenants about their usage; ``None`` answers none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """Belongs to the event loop."""

    access: LedgerAccess
    meter: Meter
    writer: LedgerWriter
    budgets: Budgets
    config: LedgerConfig
    windows: PromiseWindows | None
    receipts: ReceiptDesk | None
    """``None`` where no receipts are kept."""

    @classmethod
    async def open(cls, access: LedgerAccess, config: LedgerConfig, clock: Clock, metrics: GatewayMetrics) -> Self:
        """Open the spool; raises ``BadRequest`` where another process has it."""
        spool = None
        if config.spool_path is not None:
            spool = await asyncio.to_thread(Spool, config.spool_path, config.spool_max_bytes)
        meter = Meter(clock, config.count_wait_s)
        budgets = Budgets(access.store.spend, metrics, config.budget_interval_s)
        receipts = None if access.receipts is None else ReceiptDesk(access.receipts, config.interval_s)
        windows = None if access.windows is None else PromiseWindows(access.windows, metrics, access.name_of)
        told = Told(
            due=budgets.note_due,
            written=None if windows is None else windows.note,
            before=None if receipts is None else receipts.before_entries,
        )
        writer = LedgerWriter(access.store, meter, spool, config, access.plan_of, metrics, told)
        return cls(
            access=access,
            meter=meter,
            writer=writer,
            budgets=budgets,
            config=config,
            windows=windows,
            receipts=receipts,
        )

    async def close(self) -> None:
        """Write what is left."""
        await self.writer.close()
        if self.receipts is not None:
            await self.receipts.turn()

    def tasks(self, sessions: SessionPool) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Root tasks."""
        search = WorkerSearch(self.access.store, sessions, self.config.claim_interval_s)
        receipts = {} if self.receipts is None else {"receipts": self.receipts.run()}
        windows = {} if self.windows is None else {"promise-windows": self.windows.run()}
        own = {"ledger": self.writer.run(), "ledger-claims": search.run(), "budgets": self.budgets.run()}
        return {**own, **windows, **receipts}
