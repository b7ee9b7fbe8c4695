"""Metrics, access log and span around a request: what its answer took, counted at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratos.core.ledger.pricing import Times, kept_promises
from stratos.rpc.tracing import PROVIDER
from stratos_gateway.answering.contract import AtEnd, Step
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.exchange import RequestFacts
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.recent_load import RecentLoad
from stratos_gateway.observe.tenant_series import NoteTokens
from stratos_gateway.openai.chunks import Usage


class MetricsStep(Step):
    """Shared by all requests of the process.

    Args:
        metrics: of the process.
        recent_load: the times of the last minute, for routers.
        note_tokens: told tenant id and tokens of each answer.
    """

    def __init__(self, metrics: GatewayMetrics, recent_load: RecentLoad, note_tokens: NoteTokens) -> None:
        self._metrics = metrics
        self._recent_load = recent_load
        self._note_tokens = note_tokens

    def around(self, request: ClientRequest[Any]) -> AtEnd:
        """Count the answer, however it ends; a request that was not answered took nothing."""
        end_load = self._recent_load.begin(request.prepared.model_digest, request.tenant.priority_class)
        return AtEnd(partial(self._end, request, end_load))

    def _end(self, request: ClientRequest[Any], end_load: Callable[[], None]) -> None:
        end_load()
        if request.output is not None:
            self._count(request, request.output)

    def _count(self, request: ClientRequest[Any], output: Output) -> None:
        tenant, facts, usage = request.tenant, request.exchange.facts, output.usage
        meters = self._metrics.running(tenant.name, tenant.priority_class, request.prepared.base_model)
        self._note_tokens(tenant.id, usage.num_prompt_tokens + usage.num_output_tokens)
        meters.prompt_tokens.inc(usage.num_prompt_tokens)
        meters.prompt_length.observe(usage.num_prompt_tokens)
        meters.output_length.observe(usage.num_output_tokens)
        if not output.counts_tokens_live:
            meters.output_tokens.inc(usage.num_output_tokens)
        times = output.times(request.received_s)
        _note_facts(facts, usage, times)
        for measured in times:
            self._metrics.count_promises(tenant.plan, measured)
            if output.tells_load:
                kept = kept_promises(tenant.plan, measured)
                self._recent_load.note(request.prepared.model_digest, measured, kept)
        if (reasons := output.finish_reasons) is not None:
            request.exchange.span.set(
                provider=PROVIDER,
                finish_reasons=reasons or None,
                operation=request.prepared.operation,
                model=request.prepared.model,
                input_tokens=usage.num_prompt_tokens,
                output_tokens=usage.num_output_tokens,
                cached_tokens=usage.num_cached_tokens,
            )


def _note_facts(facts: RequestFacts, usage: Usage, times: Sequence[Times]) -> None:
    facts.num_prompt_tokens, facts.num_output_tokens = usage.num_prompt_tokens, usage.num_output_tokens
    facts.num_cached_tokens = usage.num_cached_tokens
    facts.ttft_us = min((t.ttft_us for t in times if t.ttft_us is not None), default=None)
    gaps = [t.itl_us for t in times if t.itl_us is not None]
    facts.itl_us = sum(gaps) // len(gaps) if gaps else None
