"""Every route that computes, from bytes to bytes: chat, completions and embeddings are this one class.

    key -> body -> place in the gateway -> prepared -> [ steps ( sources, the first that answers -> sender ) ]

Everything is released on every way out: a client that leaves ends the answer, its source cancels the work, and the
steps settle what it took.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from stratos.common.errors import Internal, StratosError
from stratos.core.tenant import Tenant
from stratos_gateway.answering.bugs import BugsTold
from stratos_gateway.answering.chain import YIELDS_AFTER_S, ChainSource, FallbackChain, Superseded, bodies_of, passes_on
from stratos_gateway.answering.contract import AnswerSender, AtEnd, Preparer, Source, Step
from stratos_gateway.answering.edge import Edge
from stratos_gateway.answering.entered import Entered
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import RESUMED, ClientRequest, Prepared, note_unknown
from stratos_gateway.http.body import first_headers, until_disconnect, written

O = TypeVar("O", bound=Output)  # noqa: E741 - an output


class Begun(NamedTuple):
    """The recorded answer to a request."""

    digest: str
    """Digest of the model that it began with."""
    body: bytes
    """Its request as that model was asked."""


BegunOf = Callable[[Request, Tenant], Awaitable[Begun | None]]
"""Looks for the recorded answer to a request of a tenant; ``None`` where there is none."""


async def no_record(http: Request, tenant: Tenant) -> None:
    """Answers of this route have none."""


class Endpoint(Generic[O]):
    """ASGI application of one route; errors are raised to the edge middleware.

    Args:
        edge: shared by all routes.
        preparer: of the route's bodies.
        steps: around every request, the outermost first.
        sources: of answers, tried in order; the last one always answers.
        sender: writes them.
        begun: tells what the answer of a request began with that cannot be prepared as its name stands now.
        chains: models of requests that several may answer; ``None`` takes one model alone.
        has_revisions: whether some model has several revisions now, so that a request may wait for the wrong one.
    """

    def __init__(
        self,
        edge: Edge,
        preparer: Preparer[Prepared],
        steps: Sequence[Step],
        sources: Sequence[Source[O]],
        sender: AnswerSender[O],
        begun: BegunOf = no_record,
        chains: ChainSource | None = None,
        has_revisions: Callable[[], bool] = lambda: False,
    ) -> None:
        self._edge = edge
        self._preparer = preparer
        self._steps = steps
        self._sources = sources
        self._sender = sender
        self._begun = begun
        self._chains = chains
        self._has_revisions = has_revisions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        edge, http = self._edge, Request(scope, receive)
        arrival_s, tenant, allowed = edge.clock.now(), await edge.authenticate(http), edge.allowed(http)
        body = await edge.read(http, tenant, self._preparer.prompt_param)
        text = _text_of(body) if _wants_record(http, tenant, body) else b""
        tenant = tenant.on_tier(body.get("service_tier"))
        with edge.admission.enter(tenant) as place:
            request = edge.record(http, send, tenant, place, arrival_s, allowed)
            request.body_text = text
            work = self._answer(request, body)
            del body, text  # a parsed body is many times its bytes, and none of it is needed while the answer streams
            await self._until_left(request, receive, work)

    async def resume(
        self,
        http: Request,
        receive: Receive,
        send: Send,
        tenant: Tenant,
        text: bytes,
        body: dict[str, Any],
        revision: str = "",
    ) -> None:
        """Answer a client that comes back to what it asked for with an earlier request.

        Args:
            http: that came back.
            receive: of ASGI.
            send: of ASGI.
            tenant: whose key it carries.
            text: the body of the earlier one as it is recorded.
            body: the same, parsed.
            revision: digest of the model that the answer began with; empty where none has begun.
        """
        edge = self._edge
        arrival_s, allowed = edge.clock.now(), edge.allowed(http)
        edge.begin(http, tenant, self._preparer.prompt_param)
        tenant = tenant.on_tier(body.get("service_tier"))
        with edge.admission.enter(tenant) as place:
            request = edge.record(http, send, tenant, place, arrival_s, allowed)
            request.body_text = text
            work = self._answer(request, body, revision)
            del body, text
            await self._until_left(request, receive, work)

    async def _until_left(self, request: ClientRequest[Any], receive: Receive, work: Awaitable[None]) -> None:
        try:
            scope, exchange = request.http.scope, request.exchange
            await until_disconnect(scope, receive, work, lambda: exchange.is_sent, lambda: request.detach_s)
        except StratosError as error:
            request.exchange.name_param(error)
            raise

    def _answer(self, request: ClientRequest[Any], body: dict[str, Any], revision: str = "") -> Awaitable[None]:
        """Work of the one model that a body names, or of its chain; no frame here holds the body of the former."""
        if self._chains is None or not self._chains.names_several(request.tenant, body):
            return self._answer_by(request, body, revision)
        return self._answer_by_one_of(request, body, self._chains)

    async def _answer_by_one_of(self, request: ClientRequest[Any], body: dict[str, Any], chains: ChainSource) -> None:
        request.asked_text = request.body_text
        begun = await self._begun(request.http, request.tenant) if request.asked_text else None
        if begun is None:
            chain, revision = await chains.chain(request, body), ""
            bodies = bodies_of(chain, body)
        else:  # whatever would be chosen now, its record is of one model
            bodies, revision = [orjson.loads(begun.body)], begun.digest
            chain = FallbackChain((bodies[0]["model"],))
        del body
        for name, one in zip(chain.names, bodies, strict=True):
            request.body_text = _text_of(one) if request.asked_text else b""
            if await self._has_answered(request, chain, name, one, revision):
                return

    async def _has_answered(
        self, request: ClientRequest[Any], chain: FallbackChain, name: str, body: dict[str, Any], revision: str
    ) -> bool:
        """Ask one model of a chain; false where it has no room, and another one follows."""
        is_last, headers = name == chain.names[-1], request.exchange.headers
        num_headers, request.yields_after_s = len(headers), 0.0 if is_last else YIELDS_AFTER_S
        request.yields_to = chain.yields_to
        headers += chain.headers(name)
        request.trail["choice"] = chain.section(name)
        try:
            await self._answer_by(request, body, revision)
        except StratosError as error:
            request.error = error
            chain.refused.append((name, error.code))
            del headers[num_headers:]
            if not passes_on(request):
                headers += chain.headers()
                raise
            request.begin_again()
            return False
        chain.note_answer(name)
        return True

    def _answer_by(self, request: ClientRequest[Any], body: dict[str, Any], revision: str = "") -> Awaitable[None]:
        """Work of one model, by another revision where the first one's last worker leaves before anything was sent."""
        request.kept_body = written(body) if self._has_revisions() and not revision else b""
        if not request.kept_body:  # nothing supersedes it
            return self._answer_by_revision(request, body, revision)
        return self._answer_by_revisions(request, body, revision)

    async def _answer_by_revisions(self, request: ClientRequest[Any], body: dict[str, Any], revision: str) -> None:
        headers, trail = request.exchange.headers, dict(request.trail)
        num_headers, work = len(headers), self._answer_by_revision(request, body, revision)
        del body
        while True:
            try:
                return await work
            except Superseded as error:
                request.error = error
                if not passes_on(request):
                    raise
                request.superseded.append(error.digest)
                del headers[num_headers:]
                request.begin_again()
                request.trail |= {**trail, "superseded": list(request.superseded)}
                work = self._answer_by_revision(request, orjson.loads(request.kept_body))

    async def _answer_by_revision(self, request: ClientRequest[Any], body: dict[str, Any], revision: str = "") -> None:
        ends_task = partial(self._edge.admission.ends_task, request.place)
        is_recorded = RESUMED in request.http.scope
        with ends_task(), self._edge.reading(is_recorded=is_recorded) as unknown:
            prepared = await self._prepared(request, body, revision, unknown)
        del body
        prepared.describe(request.exchange)
        note_unknown(request.exchange, unknown)
        request.prepared = prepared
        request.place.refusals.append(lambda: request.prepared.refusal())  # of what it is by then: a step may revise it
        entered, left = Entered(), None
        try:
            with ends_task():
                for step in self._steps:
                    if (around := step.around(request)) is None:
                        continue
                    if isinstance(around, AtEnd):
                        entered.add(around)
                    else:
                        await entered.enter(around)
            if (waiting := self._sender.waiting(request)) is not None:
                await entered.enter(waiting)
            with BugsTold(request.exchange.request_id):
                await self._send_first_answer(request)
        except BaseException as error:
            request.error = left = error
            if isinstance(error, Superseded) and passes_on(request) and not _is_counted(request, error):
                request.output = None  # it has run nowhere: only the next revision's answer counts
        await entered.leave(left)

    async def _prepared(
        self, request: ClientRequest[Any], body: dict[str, Any], revision: str, unknown: list[str]
    ) -> Prepared:
        """The request as its name stands now; one that comes back, and cannot be that, as its answer began.

        The gateway that took it then may have known fields that are refused now: they are added to ``unknown``.
        """
        tenant, trace = request.tenant, request.exchange.span.trace
        try:
            return await self._preparer.prepare(body, tenant, trace, revision)
        except StratosError:
            begun = None if revision else await self._begun(request.http, tenant)
            if begun is None:
                raise
        with self._edge.reading(is_recorded=True) as listed:
            prepared = await self._preparer.prepare(orjson.loads(begun.body), tenant, trace, begun.digest)
        unknown += listed
        return prepared

    async def _send_first_answer(self, request: ClientRequest[Any]) -> None:
        for source in self._sources:
            if (opened := source.open(request)) is None:
                continue
            async with opened as output:
                if output is not None:
                    request.output = output
                    return await self._sender.send(request, output)
            request.output = None
        raise Internal("no source answers this request")


def _text_of(body: dict[str, Any]) -> bytes:
    return written(body, orjson.OPT_SORT_KEYS)


def _is_counted(request: ClientRequest[Any], error: BaseException) -> bool:
    return request.output is not None and bool(request.output.drafts(error))


def _wants_record(http: Request, tenant: Tenant, body: dict[str, Any]) -> bool:
    """Whether any gateway is to be able to go on with the answer."""
    return b"idempotency-key" in first_headers(http.scope) or (
        body.get("background") is True or (tenant.plan.durable_streams and body.get("stream") is True)
    )
