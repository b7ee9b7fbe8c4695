"""The middleware around all routes: request id, errors in OpenAI's shape, counting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from random import Random

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from stratos.common.bugs import report_bug
from stratos.common.errors import Draining, Internal, NotFound, StratosError
from stratos.rpc.tracing import TRACING_OFF, Tracing
from stratos_gateway.cors import Cors
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.errors import OPENAI_ERRORS, ErrorForm, answer_headers, public_error
from stratos_gateway.http.exchange import TRACE_ALL, Exchange, Exchanges, TraceSampling, exchange_in
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.observe.request_book import EndedRequest, RequestBook

_log = logging.getLogger(__name__)
NO_FORMS: Mapping[str, ErrorForm] = {}


class GatewayApp:
    """The ASGI application.

    Args:
        routes: all routes.
        book: counts requests, and logs them.
        random: jitter of Retry-After, and which requests are traced.
        tracing: makes the spans of requests.
        sampling: which requests get a trace.
        cors_origins: whose pages browsers may let call.
        error_forms: of dialects that tell errors otherwise, by their path, those below it included.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        book: RequestBook,
        random: Random,
        tracing: Tracing = TRACING_OFF,
        sampling: TraceSampling = TRACE_ALL,
        cors_origins: tuple[str, ...] = (),
        error_forms: Mapping[str, ErrorForm] = NO_FORMS,
    ) -> None:
        self._router = Router(routes, redirect_slashes=False)
        self._exact = _exact_routes(routes)
        self._book = book
        self._random = random
        self.exchanges = Exchanges(tracing, sampling, random, book.clock)
        self._error_forms = error_forms
        self._cors = Cors(self._answer, cors_origins) if cors_origins else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing escapes."""
        if scope["type"] != "http":
            return
        exchange = self.exchanges.open(scope, send)
        exchange.error_form = self._error_form(scope["path"])
        scope["app"] = self  # makes the router raise for unknown paths and methods
        with exchange.span:
            try:
                await (self._cors or self._answer)(scope, receive, exchange.send)
            finally:
                self._finish(exchange, scope, exchange.counted_status)
                exchange.close()

    def _error_form(self, path: str) -> ErrorForm:
        for base, form in self._error_forms.items():
            if path == base or path.startswith(f"{base}/"):
                return form
        return OPENAI_ERRORS

    def _finish(self, exchange: Exchange, scope: Scope, status: int) -> None:
        """Count, trace and log how a request ended."""
        route, method = getattr(scope.get("route"), "path", "none"), scope["method"]
        ended = EndedRequest(
            request_id=exchange.request_id,
            client=exchange.client,
            method=method,
            route=route,
            status=status,
            started_s=exchange.started_s,
            is_our_fault=exchange.is_our_fault,
        )
        self._book.end(ended, exchange.facts)
        exchange.end_span(method, route, status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in any case."""
        exchange = exchange_in(scope)
        try:
            await self._find(scope)(scope, receive, send)
        except ClientDisconnect:
            exchange.client_left = True
            _log.debug("the client of %s left", exchange.request_id)
        except SlowClient:
            exchange.client_left = True
            _log.info("request %s ends: its client does not read", exchange.request_id)
        except asyncio.CancelledError:  # the process ends and has waited long enough
            await self._fail(Draining("this gateway is leaving; try again"), scope, receive, send)
        except HTTPException as error:
            await self._answer_unrouted(error, scope, receive, send)
        except Exception as error:  # the edge of the process: the client gets an answer in any case
            await self._fail(error, scope, receive, send)

    def _find(self, scope: Scope) -> ASGIApp:
        """The route of a path without parameters, which the router would find by asking all of them."""
        route = self._exact.get((scope["method"], scope["path"]))
        if route is None:
            return self._router
        scope["route"] = route
        return route.app

    async def _answer_unrouted(self, error: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
        """No route has this path, or not with this method."""
        if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
            return await self._fail(error, scope, receive, send)
        allow = {"allow": f"{(error.headers or {}).get('Allow', '')}, OPTIONS"}
        if scope["method"] == "OPTIONS":
            return await Response(status_code=HTTPStatus.NO_CONTENT, headers=allow)(scope, receive, send)
        return await self._fail(error, scope, receive, send, allow)

    async def _fail(
        self, error: Exception, scope: Scope, receive: Receive, send: Send, more: Mapping[str, str] | None = None
    ) -> None:
        exchange = exchange_in(scope)
        status, found = _translate(error, exchange.request_id)
        exchange.note_error(found)
        if exchange.status:  # headers are out; all that is left is to end the connection
            _log.error("request %s failed after its answer began: %s", exchange.request_id, found.code)
            return
        headers = {**answer_headers(found, self._random), **(more or {})}
        body = exchange.error_form.body(found, exchange.request_id)
        await OrjsonResponse(body, status_code=status, headers=headers)(scope, receive, send)


def _exact_routes(routes: Sequence[BaseRoute]) -> dict[tuple[str, str], Route]:
    """Routes by method and path, of paths that have no parameters and that the router would give to no other route."""
    found: dict[tuple[str, str], Route] = {}
    for route in routes:
        if not isinstance(route, Route) or route.param_convertors:
            continue
        for method in route.methods or ():
            scope = {"type": "http", "method": method, "path": route.path}
            if next(other for other in routes if other.matches(scope)[0] is Match.FULL) is route:
                found[method, route.path] = route
    return found


def _translate(error: Exception, request_id: str) -> tuple[int, StratosError]:
    if isinstance(error, StratosError):
        if isinstance(error, Internal):
            _log.error("request %s failed: %s", request_id, error.message)
        elif error.public_text:  # the client reads that; operators need the message
            _log.info("request %s is refused: %s: %s", request_id, error.code, error.message)
        return public_error(error).http_status, error
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        is_method = error.status_code == 405
        text = "this route does not accept this method" if is_method else "there is no such route"
        shown = NotFound(text)
        shown.code = "method_not_allowed" if is_method else "unknown_route"
        return error.status_code, shown
    return 500, report_bug(_log, f"in request {request_id}", error)
