"""Usage of a tenant, for itself: GET /v1/usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from stratos.common.errors import BadRequest, NotFound
from stratos.core.ledger.exports import SUM_COLUMNS, csv_text, sums_row, usage_rows
from stratos.core.ledger.sums import UsageTable, keep_fields, regroup
from stratos.core.tenant import Tenant
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.ledger.billing import Billing
from stratos_gateway.ledger.periods import days_between
from stratos_gateway.ledger.readings import read_table


class UsageRoute:
    """The route; a tenant sees its own usage alone.

    Args:
        authenticate: whose key a request carries.
        billing: with the ledger; ``None`` answers 404.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        authenticate: Callable[[Request], Awaitable[Tenant]],
        billing: Billing | None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._authenticate = authenticate
        self._billing = billing
        self._wall_clock = wall_clock

    async def answer(self, request: Request) -> Response:
        """By day, model, adapter and key, as ``group_by`` says; JSON or CSV."""
        tenant = await self._authenticate(request)
        if self._billing is None or (readings := self._billing.access.readings) is None:
            raise NotFound("this gateway keeps no ledger")
        query = request.query_params
        days = days_between(query, datetime.fromtimestamp(self._wall_clock(), UTC).date())
        shape = query.get("format", "json")
        if shape not in ("json", "csv"):
            raise BadRequest("format must be json or csv", param="format")
        async with readings.by(tenant) as reader:
            table, columns = await read_table(reader, tenant.id, days, query)
            return await asyncio.to_thread(_csv if shape == "csv" else _json, table, columns, days)


def _csv(table: UsageTable, columns: Sequence[str], days: Sequence[str]) -> Response:
    return Response(csv_text(usage_rows(table, columns), (*columns, *SUM_COLUMNS)), media_type="text/csv")


def _json(table: UsageTable, columns: Sequence[str], days: Sequence[str]) -> Response:
    total = regroup([table], keep_fields()).values()
    return OrjsonResponse(
        {
            "object": "list",
            "start": days[0],
            "end": days[-1],
            "data": usage_rows(table, columns),
            "total": sums_row(next(iter(total), {})),
        }
    )
