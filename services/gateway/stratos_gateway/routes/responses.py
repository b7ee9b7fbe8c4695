"""Kept and background responses, for their own tenant: GET and DELETE /v1/responses/{id}, GET
/v1/responses/{id}/input_items, POST /v1/responses/{id}/cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenant import Tenant
from stratos_gateway.background.responses import BackgroundResponses
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.responses.local import KeptResponse
from stratos_gateway.responses.state import Responses
from stratos_gateway.streams.join import SEEN_EVENTS
from stratos_gateway.streams.routes import StreamResume

_DEFAULT_ITEMS, _MAX_ITEMS = 20, 100
_MAX_DIGITS = 9
_SHOW_FIELDS = ("include", "include[]", "stream", "starting_after", "include_obfuscation")
_PAGE_FIELDS = ("limit", "order", "after", "include", "include[]")


class ResponseRoutes:
    """The routes; another tenant's response is as unknown as one that never was.

    Args:
        authenticate: whose key a request carries.
        kept: responses of all tenants.
        background: those that are computed without their clients; ``None`` where there are none.
        resume: goes on with their streams.
    """

    def __init__(
        self,
        authenticate: Callable[[Request], Awaitable[Tenant]],
        kept: Responses,
        background: BackgroundResponses | None,
        resume: StreamResume,
    ) -> None:
        self._authenticate = authenticate
        self._kept = kept
        self._background = background
        self._resume = resume

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response as its client got it, or as it stands; or its stream behind an event."""
        http = Request(scope, receive)
        _refuse_others(http.query_params, _SHOW_FIELDS)
        is_streamed, num_seen = _streaming(http.query_params)
        tenant, response_id = await self._authenticate(http), http.path_params["response_id"]
        if is_streamed:
            stream = "" if self._background is None else self._background.stream_of(tenant, response_id)
            if not stream:
                await self._find(tenant, response_id)
                text = "only background responses can be streamed again; ask without stream"
                raise BadRequest(text, param="stream", code="unsupported_parameter")
            scope[SEEN_EVENTS] = num_seen
            return await self._resume.resume(http, receive, send, tenant, stream, stream=True)
        found = await self._kept.find(tenant, response_id)
        shown = None if found is None else found.response
        if shown is None and self._background is not None:
            shown = await self._background.find(tenant, response_id)
        if shown is None:
            raise _not_found()
        await OrjsonResponse(shown)(scope, receive, send)

    async def cancel(self, request: Request) -> Response:
        """End a background response; one that has ended stays as it is."""
        tenant, response_id = await self._authenticate(request), request.path_params["response_id"]
        shown = None if self._background is None else await self._background.cancel(tenant, response_id)
        if shown is None:
            await self._find(tenant, response_id)
            raise BadRequest("only background responses can be cancelled")
        return OrjsonResponse(shown)

    async def delete(self, request: Request) -> Response:
        """Delete it; responses that went on from it keep what they hold of it."""
        tenant, response_id = await self._authenticate(request), request.path_params["response_id"]
        was_run = self._background is not None and await self._background.delete(tenant, response_id)
        if not (await self._kept.delete(tenant, response_id) or was_run):
            raise _not_found()
        return OrjsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def items(self, request: Request) -> Response:
        """Everything that was said before it, in pages."""
        query = request.query_params
        _refuse_others(query, _PAGE_FIELDS)
        limit, is_ascending, after = _limit(query), _is_ascending(query), query.get("after")
        tenant = await self._authenticate(request)
        found = (await self._find(tenant, request.path_params["response_id"])).input
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

    async def _find(self, tenant: Tenant, response_id: str) -> KeptResponse:
        found = await self._kept.find(tenant, response_id)
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


def _streaming(query: QueryParams) -> tuple[bool, int]:
    """Whether the stream is wanted, and how many of its events the client has."""
    flag, after = query.get("stream", "false"), query.get("starting_after")
    if flag not in ("true", "false"):
        raise BadRequest("stream must be true or false", param="stream")
    if after is None:
        return flag == "true", 0
    if flag == "false" or not (after.isascii() and after.isdigit() and len(after) <= _MAX_DIGITS):
        text = "starting_after must be the sequence_number of an event, and needs stream=true"
        raise BadRequest(text, param="starting_after", code="invalid_cursor")
    return True, int(after) + 1


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
