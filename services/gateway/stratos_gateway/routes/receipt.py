"""The receipt of one request, for its own tenant: GET /v1/requests/{id}/receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stratos.common.errors import NotFound
from stratos.core.ledger.exports import entry_row
from stratos.core.tenant import Tenant
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.ledger.billing import Billing, LedgerAccess


class ReceiptRoute:
    """The route; another tenant's request is as unknown as one that never was.

    Args:
        authenticate: whose key a request carries.
        billing: with the ledger; ``None``, or one without receipts, answers 404.
    """

    def __init__(self, authenticate: Callable[[Request], Awaitable[Tenant]], billing: Billing | None) -> None:
        self._authenticate = authenticate
        self._access = None if billing is None else billing.access

    async def answer(self, request: Request) -> Response:
        """Decisions about the request, and its entries in the ledger as far as they are written."""
        tenant, request_id = await self._authenticate(request), request.path_params["request_id"]
        access = self._access
        if access is None or access.receipts is None:
            raise NotFound("this gateway keeps no receipts")
        sections = await access.receipts.find(tenant.id, request_id)
        if sections is None:
            raise NotFound(
                "there is no receipt of this id: it comes a moment after the answer, and is kept for a while"
            )
        billed = await _billed(access, tenant.id, sections.pop("entries", []))
        return OrjsonResponse({"object": "request.receipt", "id": request_id, **sections, "billed": billed})


async def _billed(access: LedgerAccess, tenant: str, names: list[list[Any]]) -> list[dict[str, Any]]:
    """Rows of the ledger; an entry that is not written yet is not among them."""
    rows = []
    for day, request_id, *arrived in names:  # an older version wrote no time, by which an entry is found in a segment
        place = (int(arrived[0]) if arrived else -1, str(request_id))
        if (entry := await access.store.find(tenant, day, place)) is not None:
            row = entry_row(entry, for_admin=False)
            del row["cost_tags"]  # the one text of a client in it
            rows.append(row)
    return rows
