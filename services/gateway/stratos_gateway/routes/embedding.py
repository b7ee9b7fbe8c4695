"""The embeddings route: a request from bytes to bytes.

    key -> place in the gateway -> body -> checked, encoded, resolved -> groups run -> answer

Everything is released on every way out: the client leaving cancels the groups, and their end cancels the work at the
workers.  Tokenising and encoding of large requests happen in a thread, beside the streams of others.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from stratos.common.errors import BadRequest
from stratos.common.ids import new_nonce
from stratos.core.requests.embedding import EmbedCall
from stratos.core.requests.limits import check_input_lengths
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import PROVIDER
from stratos_gateway.generation.embedding_client import EmbeddingClient
from stratos_gateway.generation.embedding_run import embed_all
from stratos_gateway.http.exchange import exchange_of
from stratos_gateway.ledger.embedding import bill_embeddings
from stratos_gateway.limits.limiter import Cost
from stratos_gateway.models.catalogue import ModelCatalogue, ModelTarget
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.embedding_requests import EmbeddingBody, embedding_answer, parse_embedding
from stratos_gateway.routes.edge import Caller, Edge, EdgeEndpoint
from stratos_gateway.routes.meter_tag import meter_tag

INLINE_BYTES = 64 * 1024
"""Vectors above this are turned into JSON in a thread."""


class EmbeddingEndpoint(EdgeEndpoint):
    """ASGI application of /v1/embeddings; errors are raised to the edge middleware.

    Args:
        edge: shared with the other routes.
        model: tokenizer, limits, how it embeds.
        catalogue: names of models.
        client: calls workers.
        timeout_s: longest time of one request.
    """

    def __init__(
        self, edge: Edge, model: ServedModel, catalogue: ModelCatalogue, client: EmbeddingClient, timeout_s: float
    ) -> None:
        super().__init__(edge, "input")
        self._model = model
        self._catalogue = catalogue
        self._client = client
        self._timeout_s = timeout_s

    async def _answer(self, request: Request, body: dict[str, Any], caller: Caller, send: Send) -> None:
        config, arrived_unix_ms = self._model.base.embedding, int(time.time() * 1000)
        parsed = parse_embedding(body, self._model.base.vocab_size, config)
        exchange = exchange_of(request)
        span, facts = exchange.span, exchange.facts
        target = await self._catalogue.resolve(caller.tenant, parsed.model)
        caller.place.refusals.append(partial(self._catalogue.refusal, target))
        call = await self._call(parsed, target, caller.tenant, span.trace)
        num_tokens = sum(map(len, call.inputs))
        facts.model, facts.num_prompt_tokens = parsed.model, num_tokens
        span.set(
            provider=PROVIDER,
            operation="embeddings",
            model=parsed.model,
            input_tokens=num_tokens,
            inputs=len(call.inputs),
        )
        left_s = max(0.0, caller.deadline_s - self._edge.platform.clock.now())
        screen = await self._edge.content.screen(caller.tenant)
        cost = Cost(num_tokens=num_tokens, num_sequences=1)
        async with self._within_limits(request, caller.tenant, cost) as spending:
            await self._check_input(screen, () if screen is None else self._texts(parsed), spending)
            work = embed_all(call, self._edge.platform, self._client, min(self._timeout_s, left_s))
            vectors = await self._edge.admission.run_in(caller.place, work)
        if (billing := self._edge.billing) is not None:
            tag = meter_tag(self._model.base, caller.tenant, target, "embedding", span.trace, arrived_unix_ms)
            bill_embeddings(billing.meter, caller.tenant, tag, num_tokens)
        metrics = self._edge.platform.metrics
        metrics.running(caller.tenant.name, caller.tenant.priority_class).prompt_tokens.inc(num_tokens)
        metrics.embedding_inputs.inc(len(vectors))
        is_small = sum(map(len, vectors)) <= INLINE_BYTES
        encode = (parsed, vectors, num_tokens)
        answer = embedding_answer(*encode) if is_small else await asyncio.to_thread(embedding_answer, *encode)
        await Response(answer, media_type="application/json")(request.scope, request.receive, send)

    def _texts(self, body: EmbeddingBody) -> list[str]:
        decode = self._model.tokenizer.decode
        return [entry if isinstance(entry, str) else decode(entry, skip_special=False) for entry in body.inputs]

    async def _call(self, body: EmbeddingBody, target: ModelTarget, tenant: Tenant, trace: TraceContext) -> EmbedCall:
        config = self._model.base.embedding
        if config is None:
            raise BadRequest("this model does not embed", param="model", code="unsupported_operation")
        inputs = await self._model.encode_inputs(body.inputs)
        check_input_lengths([len(ids) for ids in inputs], tenant.plan.max_prompt_tokens, self._model.base.max_model_len)
        return EmbedCall(
            terms=tenant.terms(target.adapter, new_nonce()),
            model_digest=target.model_digest,
            inputs=inputs,
            pooling=config.pooling,
            normalizes=config.normalizes,
            num_dimensions=body.num_dimensions,
            trace=trace,
        )
