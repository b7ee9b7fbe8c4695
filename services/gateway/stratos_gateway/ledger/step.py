"""Money around a request: its tenant's budget on the way in, its entries for the ledger on the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request

from stratos.common.errors import InsufficientQuota
from stratos.core.ledger.entry import day_of
from stratos.core.ledger.receipt import MAX_ITEMS
from stratos.core.tenant import Tenant
from stratos_gateway.answering.contract import AtEnd, Step
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.ledger.budgets import Budgets
from stratos_gateway.ledger.meter import Meter

HasOutput = Callable[[Request, Tenant], Awaitable[bool]]
"""Whether there is a recorded answer to a request of a tenant, or the beginning of one."""


async def has_none(http: Request, tenant: Tenant) -> bool:
    """Nothing is recorded."""
    return False


class BudgetStep(Step):
    """Refuses tenants that have spent their budget.

    Args:
        budgets: of all tenants.
        has_output: asked of a request that would be refused: what was answered before is, or goes on, as it would have
            for a client that stayed.
    """

    def __init__(self, budgets: Budgets, has_output: HasOutput) -> None:
        self._budgets = budgets
        self._has_output = has_output

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Check the budget, where the plan has one; raises ``InsufficientQuota``."""
        budget = request.tenant.plan.budget
        return self._checked(request) if budget.soft or budget.hard else None

    @asynccontextmanager
    async def _checked(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        try:
            request.notices += await self._budgets.check(request.tenant)
        except InsufficientQuota:
            if not await self._has_output(request.http, request.tenant):
                raise
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
