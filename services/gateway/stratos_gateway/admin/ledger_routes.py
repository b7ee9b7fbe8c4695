"""Routes of the admin API that read the ledger: usage, entries, statements, costs. Amounts are micro-units."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.ledger.costs import DeviceCost, model_costs
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.exports import cost_rows, entry_row, statement_json, sums_row, usage_rows
from stratos.core.ledger.statement import make_statement
from stratos.core.ledger.sums import UsageGroup, UsageTable, keep_fields, regroup
from stratos.core.ledger.violations import add_entry, violation_windows
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.keys import check_tenant
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import Spans, UsageReader
from stratos.store.tenants import is_tenant_id, unknown_tenant
from stratos_gateway.ledger.periods import day_of_query, days_between, month_days, number, place_of_query, tags_of
from stratos_gateway.ledger.readings import UsageReadings, read_table

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
        readings: of its sums.
    """

    def __init__(self, ledger: LedgerStore | None, readings: UsageReadings | None) -> None:
        self._ledger = ledger
        self._usage_readings = readings

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

    @property
    def _readings(self) -> UsageReadings:
        if self._usage_readings is None:
            raise NotFound("this gateway keeps no ledger")
        return self._usage_readings

    async def _usage(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        query, (tenant, label) = request.query_params, await _tenant(caller, request)
        days = days_between(query, datetime.now(UTC).date())
        async with self._readings.by(caller.tenant) as reader:
            table, columns = await read_table(reader, tenant, days, query)
        rows = await asyncio.to_thread(usage_rows, table, columns)
        total = regroup([table], keep_fields()).values()
        return {"tenant": label, "data": rows, "total": sums_row(next(iter(total), {}))}

    async def _entries(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Some entries of a day in the order of their arrival; ``next_cursor`` is 0 at the end."""
        query, (tenant, label) = request.query_params, await _tenant(caller, request)
        async with self._readings.by(caller.tenant) as reader:
            page = await reader.entries_page(tenant, day_of_query(query), place_of_query(query))
        shown = (_entry_row(replace(entry, tenant=label), for_admin=caller.is_admin) for entry in page.entries)
        following = 0 if page.following is None else f"{page.following[0]}-{page.following[1]}"
        return {"data": await asyncio.to_thread(list, shown), "next_cursor": following}

    async def _tenants(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        labels = await caller.labels()
        return {"data": [{"id": tenant, "name": labels.get(tenant, "")} for tenant in await self._store.tenants()]}

    async def _statement(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        (tenant, label), days = await _tenant(caller, request), month_days(request.query_params)
        tags = tags_of(request.query_params)
        async with self._readings.by(caller.tenant) as reader:
            parts = await read_table(reader, tenant, days, request.query_params) if tags else None
            table = await reader.table(tenant, days, ("day", "model", "adapter"))
            spans = await self._spans(reader, tenant, days, table)
            missed = await reader.missed_windows(tenant, days)
        whole = statement_json(make_statement(label, days[0][:7], [table], violation_windows(spans), missed))
        return whole if parts is None else {**whole, "by_tag": usage_rows(*parts)}

    async def _spans(self, reader: UsageReader, tenant: str, days: Sequence[str], table: UsageTable) -> Spans:
        """Promises of a month; on a day of an older version, which kept no such sums, those of its entries."""
        by_day = regroup([table], keep_fields("day"))
        found: Spans = {}
        for day, spans in zip(days, await reader.spans(tenant, days), strict=True):
            num_summed = sum(sums["violations"] for sums in spans.values())
            # Violations since the table was read are in the spans alone, so more of them are no gap.
            is_gap = num_summed < by_day.get(UsageGroup(day=day), Counter())["violations"]
            whole = await _spans_of_entries(reader, tenant, day) if is_gap else spans
            for span, sums in whole.items():
                found.setdefault(span, Counter()).update(sums)
        return found

    async def _costs(self, caller: LedgerCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Costs of all tenants, by model; with ``group_by=tag:NAME`` by the texts of those cost tags, too."""
        query, days, tags = request.query_params, month_days(request.query_params), tags_of(request.query_params)
        price = DeviceCost(hour_price=number(query, "hour_price", 0) or 0, num_paid_hours=number(query, "paid_hours"))
        tables: dict[UsageGroup, Counter[str]] = {}
        for tenant in await self._store.tenants():
            async with self._readings.by(caller.tenant) as reader:
                found = await (
                    reader.table_by_tags(tenant, days, ("model",), tags)
                    if tags
                    else reader.table(tenant, days, ("model",))
                )
            tables = regroup([tables, found], keep_fields("model", "tags"))
        rows = cost_rows(model_costs([tables], price), tags)
        if any(isinstance(value, int) and abs(value) > _MAX_AMOUNT for row in rows for value in row.values()):
            raise BadRequest("with this price and these hours an amount is too large", param="hour_price")
        return {"month": days[0][:7], "data": rows}


async def _spans_of_entries(reader: UsageReader, tenant: str, day: str) -> Spans:
    """Promises of a day, of which some entries at a time are in memory."""
    found: Spans = {}
    async for entry in reader.entries(tenant, day):
        add_entry(found, entry)
    return found


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
        raise unknown_tenant(wanted)
    labels = await caller.labels()
    found = next((tenant for tenant, name in labels.items() if wanted in (tenant, name)), wanted)
    return found, labels.get(found, found)


def _entry_row(entry: LedgerEntry, *, for_admin: bool) -> dict[str, Any]:
    """A row of files, with what is for traces alone."""
    row = entry_row(entry, for_admin=for_admin)
    return row | {"prefix_hashes": entry.prefix_hashes} if entry.prefix_hashes else row
