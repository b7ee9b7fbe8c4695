"""The two generation routes: a request from bytes to bytes.

    key -> place in the gateway -> body -> checked, encoded, resolved -> generations run -> answer or stream

Everything is released on every way out: the client leaving cancels the work, and its end cancels the
generations at the workers and gives back the place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Send

from stratos.common.errors import DeadlinePassed, StratosError, WaitTooLong, WorkerLost
from stratos.core.ledger.pricing import kept_promises
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import PROVIDER, Span
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.generation import GenerationSpec
from stratos_gateway.generation.journal import ChoiceChunk
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.exchange import Exchange, exchange_of
from stratos_gateway.http.json_response import OrjsonResponse
from stratos_gateway.http.sse import DONE, EventStream, encode_events
from stratos_gateway.ledger.account import ExternalAccount, NoAccount, RequestAccount
from stratos_gateway.ledger.replay import bill_replay
from stratos_gateway.ledger.responses import KeptAnswer, KeptPrompt, merge_chunks, response_key
from stratos_gateway.limits.limiter import Cost
from stratos_gateway.metrics import RequestMeters
from stratos_gateway.observe.request_facts import RequestFacts
from stratos_gateway.openai.requests import GenerationOptions
from stratos_gateway.openai.responses import ChatRenderer, Usage
from stratos_gateway.overflow.client import ExternalCall, OverflowClient
from stratos_gateway.overflow.output import ExternalOutput
from stratos_gateway.overflow.request import ExternalRequest
from stratos_gateway.policies.output import Generated, Output, ScreenedOutput
from stratos_gateway.policies.screen import Screen
from stratos_gateway.routes.edge import Caller, Edge, EdgeEndpoint, Spending
from stratos_gateway.routes.preparation import Prepared

_log = logging.getLogger(__name__)
SERVED_ELSEWHERE = (b"x-stratos-served-by", b"external")
"""Header of an answer that an external endpoint has made."""

Prepare = Callable[[dict[str, Any], Tenant, TraceContext], Awaitable[Prepared]]


@dataclass(frozen=True, slots=True)
class _Answering:
    """A request that runs, and what of it the client is shown."""

    generated: Generated
    output: Output
    prepared: Prepared
    account: NoAccount
    sent: list[ChoiceChunk] = field(default_factory=list)
    may_go_elsewhere: bool = False
    """Another way of running it may follow, as long as the client was sent nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What every way of running a request needs."""

    prepared: Prepared
    caller: Caller
    request: Request
    send: Send
    screen: Screen | None
    spending: Spending


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
        exchange.facts.model = prepared.options.model
        caller.place.refusals.append(prepared.refusal)
        screen = await self._edge.content.screen(caller.tenant)
        async with self._within_limits(request, caller.tenant, _cost(prepared)) as spending:
            await self._check_input(screen, prepared.texts, spending)
            run = _Run(prepared=prepared, caller=caller, request=request, send=send, screen=screen, spending=spending)
            key = self._response_key(caller.tenant, prepared.options, prepared.specs) if screen is None else None
            if key is not None and await self._replay(key, run):
                spending.num_tokens = 0
                return
            overflow = self._edge.overflow
            if overflow is None or prepared.external is None or not overflow.has_room:
                await self._run_here(run, key)
                return
            try:
                await self._run_here(run, key, overflow_after_s=overflow.config.after_s)
            except WaitTooLong as error:
                if not await self._run_elsewhere(run, overflow, prepared.external, error):
                    await self._run_here(run, key, queued_since_s=caller.arrival_s)

    async def _run_here(
        self, run: _Run, key: bytes | None, *, overflow_after_s: float = 0.0, queued_since_s: float | None = None
    ) -> None:
        """Run it on this platform.

        Raises:
            WaitTooLong: it would wait longer than ``overflow_after_s``; nothing was computed or sent.
        """
        prepared, caller, options = run.prepared, run.caller, run.prepared.options
        specs = [
            replace(
                spec,
                terms=caller.dated(spec.terms),
                overflow_after_s=overflow_after_s,
                queued_since_s=queued_since_s,
            )
            for spec in prepared.specs
        ]
        stop = (options.stop, options.include_stop)
        fanout = Fanout(specs, options.n, stop, self._edge.tokenizer, self._edge.platform)
        is_begun = partial(_is_begun, fanout)
        with (
            self._settled(run, fanout, unless=lambda error: isinstance(error, WaitTooLong)),
            self._account(caller.tenant, fanout, prepared) as account,
        ):
            async with fanout:
                with self._edge.admission.ends_by(caller.place, fanout.fail, is_begun):
                    may_go = overflow_after_s > 0
                    answering = _Answering(
                        fanout, _screened(fanout, run.screen), prepared, account, may_go_elsewhere=may_go
                    )
                    await self._send(answering, run.request, run.send)
                    self._keep(key, caller.tenant, answering.sent, fanout)

    async def _run_elsewhere(
        self, run: _Run, overflow: OverflowClient, external: ExternalRequest, why: WaitTooLong
    ) -> bool:
        """Run it at the external endpoint; false where that failed before the client was sent anything."""
        exchange, platform, spec = exchange_of(run.request), self._edge.platform, run.prepared.specs[0]
        left_s = run.caller.deadline_s - platform.clock.now()
        call = ExternalCall(run.prepared.options.model, spec.sampling.max_tokens, len(spec.prompt_ids), left_s)
        try:
            async with overflow.open(external, call) as output:
                exchange.headers.append(SERVED_ELSEWHERE)
                with (
                    self._settled(run, output, unless=lambda error: not exchange.status),
                    self._external_account(run, output, overflow.config.price) as account,
                ):
                    await self._send_external(output, run, account)
        except WorkerLost as error:
            if exchange.status:
                raise
            platform.metrics.overflows.labels("failed").inc()
            _log.warning("request %s waits here: %s", exchange.request_id, error.message)
            exchange.headers = [header for header in exchange.headers if header != SERVED_ELSEWHERE]
            return False
        platform.metrics.observe_external(output.receipt, is_complete=output.is_complete)
        _log.info("request %s went to the external endpoint: %s", exchange.request_id, why.message)
        return True

    async def _send_external(self, output: ExternalOutput, run: _Run, account: NoAccount) -> None:
        left_s = max(0.0, run.caller.end_s - self._edge.platform.clock.now())
        timer = asyncio.get_running_loop().call_later(left_s, output.fail, DeadlinePassed())
        try:
            with self._edge.admission.ends_by(run.caller.place, output.fail, lambda: output.has_begun):
                answering = _Answering(
                    output, _screened(output, run.screen), run.prepared, account, may_go_elsewhere=True
                )
                await self._send(answering, run.request, run.send)
        finally:
            timer.cancel()

    @contextmanager
    def _settled(self, run: _Run, generated: Generated, *, unless: Callable[[StratosError], bool]) -> Iterator[None]:
        """Count what a request took, however it ends; not where it is tried again."""
        is_over = True
        try:
            yield
        except StratosError as error:
            is_over = not unless(error)
            raise
        finally:
            if is_over:
                spending = run.spending
                spending.num_output_tokens = generated.num_output_tokens
                spending.num_tokens = generated.num_prompt_tokens + generated.num_output_tokens
                self._count(run, generated)
                _describe(exchange_of(run.request).span, run.prepared, generated)

    def _response_key(
        self, tenant: Tenant, options: GenerationOptions, specs: Sequence[GenerationSpec]
    ) -> bytes | None:
        return None if self._edge.billing is None else response_key(tenant.plan, options, specs)

    async def _replay(self, key: bytes, run: _Run) -> bool:
        """Answer from the response cache, if it has the answer."""
        prepared, caller, request, send = run.prepared, run.caller, run.request, run.send
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
        specs = [replace(spec, terms=caller.dated(spec.terms)) for spec in prepared.specs]
        bill_replay(billing.meter, caller.tenant.plan, specs, answer)
        self._running(caller.tenant).output_tokens.inc(answer.usage.num_output_tokens)
        self._count_usage(caller.tenant, answer.usage, exchange_of(request).facts)
        return True

    def _keep(self, key: bytes | None, tenant: Tenant, sent: Sequence[ChoiceChunk], fanout: Fanout) -> None:
        """Keep an answer that was sent whole."""
        billing, generations = self._edge.billing, fanout.generations
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
        kept = KeptAnswer(chunks=merge_chunks(sent), prompts=prompts)
        if kept.is_cut_short(generations[0].spec.sampling.max_tokens):
            return  # for want of memory: the next one may get further
        billing.responses.keep(key, tenant.name, kept, tenant.plan.response_ttl_s)

    def _account(self, tenant: Tenant, fanout: Fanout, prepared: Prepared) -> NoAccount:
        billing = self._edge.billing
        if billing is None:
            return NoAccount()
        return RequestAccount(billing.meter, tenant.plan, fanout.generations, is_stream=prepared.options.stream)

    def _external_account(self, run: _Run, output: ExternalOutput, price: Price) -> NoAccount:
        spec, billing = run.prepared.specs[0], self._edge.billing
        if billing is None or spec.meter is None:
            return NoAccount()
        return ExternalAccount(
            billing.meter,
            run.caller.tenant,
            spec.meter,
            output,
            price,
            has_answered=lambda: bool(exchange_of(run.request).status),
        )

    async def _send(self, answering: _Answering, request: Request, send: Send) -> None:
        if answering.prepared.options.stream:
            await self._stream(answering, exchange_of(request), send)
            return
        chunks = await answering.output.finish()
        answering.sent.extend(replace(chunk) for chunk in chunks)
        response = OrjsonResponse(answering.prepared.renderer.body(chunks, _usage(answering.generated)))
        await response(request.scope, request.receive, send)

    async def _stream(self, answering: _Answering, exchange: Exchange, send: Send) -> None:
        """Errors before the first event have a status of their own; later ones are the last event."""
        stream, prepared = EventStream(send, self._edge.limits.write_timeout_s), answering.prepared
        renderer = prepared.renderer
        idle_s = 0.0 if answering.may_go_elsewhere else self._edge.limits.sse_keepalive_s
        try:
            async with stream.kept_alive(idle_s):
                while chunks := await answering.output.news():
                    await stream.write(encode_events(renderer.events(chunks)))
                    answering.generated.confirm(chunks)
                    answering.sent.extend(chunks)
            usage = [renderer.usage_event(_usage(answering.generated))] if prepared.options.include_usage else []
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

    def _count(self, run: _Run, generated: Generated) -> None:
        metrics, tenant, facts = self._edge.platform.metrics, run.caller.tenant, exchange_of(run.request).facts
        self._count_usage(tenant, _usage(generated), facts)
        if not isinstance(generated, Fanout):  # it came from elsewhere, and was not counted on its way
            self._running(tenant).output_tokens.inc(generated.num_output_tokens)
            return
        times = [generation.transcript.times(run.caller.arrival_s) for generation in generated.generations]
        facts.ttft_us = min((t.ttft_us for t in times if t.ttft_us is not None), default=None)
        gaps = [t.itl_us for t in times if t.itl_us is not None]
        facts.itl_us = sum(gaps) // len(gaps) if gaps else None
        for measured in times:
            metrics.count_promises(tenant.plan, measured)
            if self._edge.recent_load is not None:
                self._edge.recent_load.note(measured, kept_promises(tenant.plan, measured))


def _describe(span: Span, prepared: Prepared, generated: Generated) -> None:
    reasons: tuple[str, ...] = ()
    if isinstance(generated, Fanout):
        reasons = tuple(r for generation in generated.generations for r in generation.transcript.finish_reasons)
    span.set(
        provider=PROVIDER,
        finish_reasons=reasons or None,
        operation="chat" if isinstance(prepared.renderer, ChatRenderer) else "text_completion",
        model=prepared.options.model,
        input_tokens=generated.num_prompt_tokens,
        output_tokens=generated.num_output_tokens,
        cached_tokens=generated.num_cached_tokens,
    )


def _screened(generated: Generated, screen: Screen | None) -> Output:
    return ScreenedOutput(generated, screen) if screen is not None and screen.checks_output else generated


def _cost(prepared: Prepared) -> Cost:
    n = prepared.options.n
    return Cost(
        num_tokens=sum(len(spec.prompt_ids) + n * spec.sampling.max_tokens for spec in prepared.specs),
        num_sequences=n * len(prepared.specs),
    )


def _is_begun(fanout: Fanout) -> bool:
    return fanout.num_output_tokens > 0


def _usage(generated: Generated) -> Usage:
    return Usage(generated.num_prompt_tokens, generated.num_output_tokens, generated.num_cached_tokens)
