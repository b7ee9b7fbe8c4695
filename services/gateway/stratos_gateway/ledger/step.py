"""Money around a request: its tenant's budget on the way in, its entries for the ledger on the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from stratos.core.ledger.entry import day_of
from stratos.core.ledger.receipt import MAX_ITEMS
from stratos_gateway.answering.contract import AtEnd, Step
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.ledger.budgets import Budgets
from stratos_gateway.ledger.meter import Meter


class BudgetStep(Step):
    """Refuses tenants that have spent their budget.

    Args:
        budgets: of all tenants.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Check the budget, where the plan has one; raises ``InsufficientQuota``."""
        budget = request.tenant.plan.budget
        return self._checked(request) if budget.soft or budget.hard else None

    @asynccontextmanager
    async def _checked(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        request.notices += await self._budgets.check(request.tenant)
        yield


class AccountStep(Step):
    """Leaves what each answer took to the meter, however the request ended.

    Args:
        meter: of the gateway.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def around(self, request: ClientRequest[Any]) -> AtEnd:
        """Bill the answer at its end; an error that was told within a stream counts as one."""
        return AtEnd(partial(self._bill, request))

    def _bill(self, request: ClientRequest[Any]) -> None:
        if request.output is None:
            return
        drafts = request.output.drafts(request.error)
        for draft in drafts:
            self._meter.end(draft)
        times = [draft.tag.arrived_unix_ms for draft in drafts]
        names = [[day_of(ms), draft.request_id, ms] for draft, ms in zip(drafts, times, strict=True)]
        request.trail["entries"] = names[:MAX_ITEMS]
