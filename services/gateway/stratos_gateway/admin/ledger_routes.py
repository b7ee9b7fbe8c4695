"""Routes of the admin API that read the ledger: usage, entries, statements, costs. Amounts are micro-units."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.ledger.costs import DeviceCost, model_costs
from stratos.core.ledger.exports import cost_rows, entry_row, statement_json, sums_row, usage_rows
from stratos.core.ledger.statement import make_statement, violation_windows
from stratos.core.ledger.sums import UsageTable, keep_fields, regroup
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.keys import check_tenant
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.tenants import is_tenant_id
from stratos_gateway.ledger.periods import columns_of, day_of_query, days_between, month_days, number

_MAX_AMOUNT = (1 << 63) - 1
"""Larger ones are not read everywhere."""


class LedgerCaller(Protocol):
    """Who asks; ``routes.Caller`` is the one of the admin API."""

    tenant: Tenant

    @property
    def is_admin(self) -> bool:
        """Whether the key is one of the platform."""
        ...

    async def labels(self) -> Mapping[str, str]:
        """Names of the tenants that the caller may read, by id."""
        ...


Handler = Callable[[Any, Request, dict[str, Any]], Awaitable[dict[str, Any]]]


class LedgerRoutes:
    """Handlers.

    Args:
        ledger: ``None`` answers 404.
    """

    def __init__(self, ledger: LedgerStore | None) -> None:
        self._ledger = ledger

    def table(self) -> list[tuple[str, str, Role, Handler]]:
        """Method, path, least role, handler."""
        own, admin = Role.TENANT_ADMIN, Role.ADMIN
        return [
            ("GET", "/usage", own, self._usage),
            ("GET", "/ledger", own, self._entries),
            ("GET", "/ledger/tenants", admin, self._tenants),
            ("GET", "/statement", own, self._statement),
            ("GET", "/costs", admin, self._costs),
        ]

    @property
    def _store(self) -> LedgerStore:
        if self._ledger is None:
            raise NotFound("this gateway keeps no ledger")
        return self._ledger

    async def _usage(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        query, (tenant, label) = request.query_params, await _tenant(caller, request)
        columns = columns_of(query)
        tables = await self._store.days(tenant, days_between(query, datetime.now(UTC).date()))
        total = regroup(tables, keep_fields()).values()
        return {
            "tenant": label,
            "data": usage_rows(regroup(tables, keep_fields(*columns)), columns),
            "total": sums_row(next(iter(total), {})),
        }

    async def _entries(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Some entries of a day; ``next_cursor`` is 0 at the end."""
        query, (tenant, label) = request.query_params, await _tenant(caller, request)
        cursor = number(query, "cursor", 0) or 0
        entries, following = await self._store.entries_page(tenant, day_of_query(query), cursor)
        rows = [entry_row(replace(entry, tenant=label), for_admin=caller.is_admin) for entry in entries]
        return {"data": rows, "next_cursor": following}

    async def _tenants(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        labels = await caller.labels()
        return {"data": [{"id": tenant, "name": labels.get(tenant, "")} for tenant in await self._store.tenants()]}

    async def _statement(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        (tenant, label), days = await _tenant(caller, request), month_days(request.query_params)
        tables = await self._store.days(tenant, days)
        broken = [day for day, table in zip(days, tables, strict=True) if _has_violations(table)]
        entries = [entry for day in broken async for entry in self._store.entries(tenant, day)]
        unique = {entry.request_id: entry for entry in entries}  # a scan may give one twice
        return statement_json(make_statement(label, days[0][:7], tables, violation_windows(unique.values())))

    async def _costs(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        query, days = request.query_params, month_days(request.query_params)
        price = DeviceCost(hour_price=number(query, "hour_price", 0) or 0, num_paid_hours=number(query, "paid_hours"))
        tables: list[UsageTable] = []
        for tenant in await self._store.tenants():
            tables += await self._store.days(tenant, days)
        rows = cost_rows(model_costs(tables, price))
        if any(isinstance(value, int) and abs(value) > _MAX_AMOUNT for row in rows for value in row.values()):
            raise BadRequest("with this price and these hours an amount is too large", param="hour_price")
        return {"month": days[0][:7], "data": rows}


async def _tenant(caller: LedgerCaller, request: Request) -> tuple[str, str]:
    """Id and label of the tenant that is asked for, by its name or, as long as its ledger is kept, by its id.

    Raises:
        BadRequest: neither a name nor an id. NotFound: not for this caller, whether there is one or not.
    """
    wanted = request.query_params.get("tenant", caller.tenant.name)
    if not is_tenant_id(wanted):
        check_tenant(wanted)
    if wanted in (caller.tenant.name, caller.tenant.id):
        return caller.tenant.id, caller.tenant.name
    if not caller.is_admin:
        raise NotFound(f"there is no tenant {wanted!r}")
    labels = await caller.labels()
    found = next((tenant for tenant, name in labels.items() if wanted in (tenant, name)), wanted)
    return found, labels.get(found, found)


def _has_violations(table: UsageTable) -> bool:
    return any(sums.get("violations") for sums in table.values())
