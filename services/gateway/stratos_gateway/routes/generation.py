"""The two generation routes: a request from bytes to bytes.

    key -> place in the gateway -> body -> checked, encoded, resolved -> generations run -> answer or stream

Everything is released on every way out: the client leaving cancels the work, and its end cancels the
generations at the workers and gives back the place.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Send

from stratos.common.errors import StratosError
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import Span
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.generation import GenerationSpec
from stratos_gateway.generation.journal import ChoiceChunk
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.exchange import Exchange, exchange_of
from stratos_gateway.http.json_response import OrjsonResponse
from stratos_gateway.http.sse import DONE, EventStream, encode_events
from stratos_gateway.ledger.account import NoAccount, RequestAccount
from stratos_gateway.ledger.replay import bill_replay
from stratos_gateway.ledger.responses import KeptAnswer, KeptPrompt, merge_chunks, response_key
from stratos_gateway.limits.limiter import Cost
from stratos_gateway.metrics import RequestMeters
from stratos_gateway.observe.request_facts import RequestFacts
from stratos_gateway.openai.requests import GenerationOptions
from stratos_gateway.openai.responses import ChatRenderer, Usage
from stratos_gateway.policies.output import Output, ScreenedOutput
from stratos_gateway.routes.edge import Caller, Edge, EdgeEndpoint
from stratos_gateway.routes.preparation import Prepared

_log = logging.getLogger(__name__)

Prepare = Callable[[dict[str, Any], Tenant, TraceContext], Awaitable[Prepared]]


@dataclass(frozen=True, slots=True)
class _Answering:
    """A request that runs, and what of it the client is shown."""

    fanout: Fanout
    output: Output
    prepared: Prepared
    account: NoAccount
    sent: list[ChoiceChunk] = field(default_factory=list)


class GenerationEndpoint(EdgeEndpoint):
    """ASGI application of one generation route; errors are raised to the edge middleware.

    Args:
        edge: shared.
        prepare: of this route.
        prompt_param: what the route calls its prompt.
    """

    def __init__(self, edge: Edge, prepare: Prepare, prompt_param: str) -> None:
        super().__init__(edge, prompt_param)
        self._prepare = prepare

    async def _answer(self, request: Request, body: dict[str, Any], caller: Caller, send: Send) -> None:
        exchange = exchange_of(request)
        prepared = await self._prepare(body, caller.tenant, exchange.span.trace)
        options = prepared.options
        exchange.facts.model = options.model
        caller.place.refusals.append(prepared.refusal)
        specs = [replace(spec, terms=caller.dated(spec.terms)) for spec in prepared.specs]
        stop = (options.stop, options.include_stop)
        screen = await self._edge.content.screen(caller.tenant)
        async with self._within_limits(request, caller.tenant, _cost(prepared)) as spending:
            await self._check_input(screen, prepared.texts, spending)
            key = self._response_key(caller.tenant, options, specs) if screen is None else None
            if key is not None and await self._replay(key, prepared, specs, caller, request, send):
                spending.num_tokens = 0
                return
            fanout = Fanout(specs, options.n, stop, self._edge.tokenizer, self._edge.platform)
            try:
                with self._account(caller.tenant, fanout, prepared) as account:
                    async with fanout:
                        is_begun = partial(_is_begun, fanout)
                        with self._edge.admission.ends_by(caller.place, fanout.fail, is_begun):
                            is_screened = screen is not None and screen.checks_output
                            output = ScreenedOutput(fanout, screen) if screen is not None and is_screened else fanout
                            answering = _Answering(fanout, output, prepared, account)
                            await self._send(answering, request, send)
                            self._keep(key, caller.tenant, answering)
            finally:
                spending.num_output_tokens = fanout.num_output_tokens
                spending.num_tokens = fanout.num_prompt_tokens + fanout.num_output_tokens
                self._count(caller, fanout, exchange.facts)
                _describe(exchange.span, prepared, fanout)

    def _response_key(
        self, tenant: Tenant, options: GenerationOptions, specs: Sequence[GenerationSpec]
    ) -> bytes | None:
        return None if self._edge.billing is None else response_key(tenant.plan, options, specs)

    async def _replay(
        self, key: bytes, prepared: Prepared, specs: Sequence[GenerationSpec], caller: Caller, request: Request,
        send: Send,
    ) -> bool:  # fmt: skip
        """Answer from the response cache, if it has the answer."""
        billing, renderer = self._edge.billing, prepared.renderer
        answer = None if billing is None else billing.responses.find(key)
        if billing is None or answer is None:
            return False
        chunks = answer.copies()
        if prepared.options.stream:
            stream = EventStream(send, self._edge.limits.write_timeout_s)
            usage = [renderer.usage_event(answer.usage)] if prepared.options.include_usage else []
            await stream.write(encode_events([*renderer.events(chunks), *usage]) + DONE)
            await stream.end()
        else:
            await OrjsonResponse(renderer.body(chunks, answer.usage))(request.scope, request.receive, send)
        bill_replay(billing.meter, caller.tenant.plan, specs, answer)
        self._running(caller.tenant).output_tokens.inc(answer.usage.num_output_tokens)
        self._count_usage(caller.tenant, answer.usage, exchange_of(request).facts)
        return True

    def _keep(self, key: bytes | None, tenant: Tenant, answering: _Answering) -> None:
        """Keep an answer that was sent whole."""
        billing, generations = self._edge.billing, answering.fanout.generations
        if key is None or billing is None or not all(g.transcript.is_complete for g in generations):
            return
        prompts = tuple(
            KeptPrompt(
                num_prompt_tokens=len(generation.spec.prompt_ids),
                num_cached_tokens=generation.transcript.num_cached_tokens,
                num_output_tokens=generation.transcript.num_output_tokens,
            )
            for generation in generations
        )
        kept = KeptAnswer(chunks=merge_chunks(answering.sent), prompts=prompts)
        if kept.is_cut_short(generations[0].spec.sampling.max_tokens):
            return  # for want of memory: the next one may get further
        billing.responses.keep(key, kept, tenant.plan.response_ttl_s)

    def _account(self, tenant: Tenant, fanout: Fanout, prepared: Prepared) -> NoAccount:
        billing = self._edge.billing
        if billing is None:
            return NoAccount()
        return RequestAccount(billing.meter, tenant.plan, fanout.generations, is_stream=prepared.options.stream)

    async def _send(self, answering: _Answering, request: Request, send: Send) -> None:
        if answering.prepared.options.stream:
            await self._stream(answering, exchange_of(request), send)
            return
        chunks = await answering.output.finish()
        answering.sent.extend(replace(chunk) for chunk in chunks)
        response = OrjsonResponse(answering.prepared.renderer.body(chunks, _usage(answering.fanout)))
        await response(request.scope, request.receive, send)

    async def _stream(self, answering: _Answering, exchange: Exchange, send: Send) -> None:
        """Errors before the first event have a status of their own; later ones are the last event."""
        stream, prepared = EventStream(send, self._edge.limits.write_timeout_s), answering.prepared
        renderer = prepared.renderer
        try:
            while chunks := await answering.output.news():
                await stream.write(encode_events(renderer.events(chunks)))
                answering.fanout.confirm(chunks)
                answering.sent.extend(chunks)
            usage = [renderer.usage_event(_usage(answering.fanout))] if prepared.options.include_usage else []
            await stream.write(encode_events(usage) + DONE)
        except StratosError as error:
            if not stream.is_started:
                raise
            label = exchange.span.trace.label(renderer.answer.id)
            _log.warning("stream %s ends with an error: %s: %s", label, error.code, error.message)
            self._name_param(error)
            answering.account.fail(error)
            exchange.note_error(error)
            await stream.write(encode_events([error_body(error)]))
        await stream.end()

    def _running(self, tenant: Tenant) -> RequestMeters:
        return self._edge.platform.metrics.running(tenant.name, tenant.priority_class)

    def _count_usage(self, tenant: Tenant, usage: Usage, facts: RequestFacts) -> None:
        """At the end; output tokens of a generation were counted as they came."""
        self._running(tenant).prompt_tokens.inc(usage.num_prompt_tokens)
        facts.num_prompt_tokens, facts.num_output_tokens = usage.num_prompt_tokens, usage.num_output_tokens
        facts.num_cached_tokens = usage.num_cached_tokens

    def _count(self, caller: Caller, fanout: Fanout, facts: RequestFacts) -> None:
        metrics, tenant = self._edge.platform.metrics, caller.tenant
        self._count_usage(tenant, _usage(fanout), facts)
        times = [generation.transcript.times(caller.arrival_s) for generation in fanout.generations]
        facts.ttft_us = min((t.ttft_us for t in times if t.ttft_us is not None), default=None)
        gaps = [t.itl_us for t in times if t.itl_us is not None]
        facts.itl_us = sum(gaps) // len(gaps) if gaps else None
        for measured in times:
            metrics.count_promises(tenant.plan, measured)


def _describe(span: Span, prepared: Prepared, fanout: Fanout) -> None:
    span.set(
        operation="chat" if isinstance(prepared.renderer, ChatRenderer) else "text_completion",
        model=prepared.options.model,
        input_tokens=fanout.num_prompt_tokens,
        output_tokens=fanout.num_output_tokens,
        cached_tokens=fanout.num_cached_tokens,
    )


def _cost(prepared: Prepared) -> Cost:
    n = prepared.options.n
    return Cost(
        num_tokens=sum(len(spec.prompt_ids) + n * spec.sampling.max_tokens for spec in prepared.specs),
        num_sequences=n * len(prepared.specs),
    )


def _is_begun(fanout: Fanout) -> bool:
    return fanout.num_output_tokens > 0


def _usage(fanout: Fanout) -> Usage:
    return Usage(fanout.num_prompt_tokens, fanout.num_output_tokens, fanout.num_cached_tokens)
