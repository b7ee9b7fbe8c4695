"""Kept responses, for their own tenant: GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenant import Tenant
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.responses.state import KeptResponse, Responses

_DEFAULT_ITEMS, _MAX_ITEMS = 20, 100
_PAGE_FIELDS = ("limit", "order", "after", "include", "include[]")


class ResponseRoutes:
    """The routes; another tenant's response is as unknown as one that never was.

    Args:
        authenticate: whose key a request carries.
        kept: responses of all tenants.
    """

    def __init__(self, authenticate: Callable[[Request], Awaitable[Tenant]], kept: Responses) -> None:
        self._authenticate = authenticate
        self._kept = kept

    async def show(self, request: Request) -> Response:
        """The response as its client got it."""
        _refuse_others(request.query_params, ("include", "include[]"))
        return OrjsonResponse((await self._find(request)).response)

    async def delete(self, request: Request) -> Response:
        """Delete it; responses that went on from it keep what they hold of it."""
        tenant, response_id = await self._authenticate(request), request.path_params["response_id"]
        if not await self._kept.delete(tenant, response_id):
            raise _not_found()
        return OrjsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def items(self, request: Request) -> Response:
        """Everything that was said before it, in pages."""
        query = request.query_params
        _refuse_others(query, _PAGE_FIELDS)
        limit, is_ascending, after = _limit(query), _is_ascending(query), query.get("after")
        found = (await self._find(request)).input
        ordered = found if is_ascending else found[::-1]
        page = _after(ordered, after)
        shown = page[:limit]
        return OrjsonResponse(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else "",
                "last_id": shown[-1]["id"] if shown else "",
                "has_more": len(page) > limit,
            }
        )

    async def _find(self, request: Request) -> KeptResponse:
        tenant = await self._authenticate(request)
        found = await self._kept.find(tenant, request.path_params["response_id"])
        if found is None:
            raise _not_found()
        return found


def _not_found() -> NotFound:
    return NotFound("there is no response of this id: it was not kept, or its time is over")


def _refuse_others(query: QueryParams, known: Sequence[str]) -> None:
    for name in query:
        if name not in known:
            text = f"{name[:100]} is not supported by this server"
            raise BadRequest(text, param=name[:100], code="unsupported_parameter")


def _limit(query: QueryParams) -> int:
    text = query.get("limit", str(_DEFAULT_ITEMS))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MAX_ITEMS):
        raise BadRequest(f"limit must be a whole number from 1 to {_MAX_ITEMS}", param="limit")
    return int(text)


def _is_ascending(query: QueryParams) -> bool:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    return order == "asc"


def _after(items: Sequence[dict[str, Any]], after: str | None) -> Sequence[dict[str, Any]]:
    if after is None:
        return items
    place = next((index for index, item in enumerate(items) if item["id"] == after), None)
    if place is None:
        raise BadRequest("after must be the id of an item of this list", param="after")
    return items[place + 1 :]
