"""A body of /v1/embeddings made ready: parsed, its model resolved, its inputs encoded and checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stratos.common.errors import BadRequest
from stratos.common.ids import new_nonce
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.embedding import EmbedCall
from stratos.core.requests.limits import check_input_lengths
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import PROVIDER
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.answering.meter_tag import meter_tag
from stratos_gateway.answering.request import Prepared
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.models.catalogue import Lookup, ModelCatalogue, ModelTarget
from stratos_gateway.openai.embedding_requests import EmbeddingBody, parse_embedding
from stratos_gateway.openai.fields import session_of
from stratos_gateway.preparation.counts import check_counts, num_token_ids, off_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEmbedding(Prepared):
    """A request for embeddings."""

    body: EmbeddingBody
    call: EmbedCall
    meter: MeterTag

    def describe(self, exchange: Exchange) -> None:
        """All is known before it runs."""
        super(PreparedEmbedding, self).describe(exchange)
        exchange.facts.num_prompt_tokens = self.num_tokens
        exchange.span.set(
            provider=PROVIDER,
            operation=self.operation,
            model=self.model,
            input_tokens=self.num_tokens,
            inputs=len(self.call.inputs),
        )


class EmbeddingPreparer:
    """Preparation of the embeddings route.

    Args:
        catalogue: names of models.
        tenant_label: of a tenant's name, in metrics of workers.
        unix_s: seconds since the epoch.
    """

    prompt_param = "input"

    def __init__(
        self,
        catalogue: ModelCatalogue,
        tenant_label: Callable[[str], str] = str,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._tenant_label = tenant_label
        self._unix_s = unix_s

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedEmbedding:
        """Check, resolve and encode; large inputs are encoded in a thread, beside the streams of others."""
        lookup, arrived_unix_ms = await self._look_up(tenant, body), int(self._unix_s() * 1000)
        model = lookup.served
        counts = num_token_ids(body.get("input"))
        check_counts(counts, model.max_input_tokens, self.prompt_param)
        num_ids, base = sum(counts), model.base
        parsed = await off_loop(num_ids, partial(parse_embedding, body, base.vocab_size, base.embedding))
        target = lookup.target
        call = await self._call(parsed, target, tenant, trace)
        has_policy = bool(tenant.plan.content_policy)
        texts = await off_loop(num_ids, partial(_texts, parsed, model.tokenizer)) if has_policy else ()
        return PreparedEmbedding(
            model=parsed.model,
            operation="embeddings",
            base_model=base.name,
            model_digest=base.digest,
            num_tokens=sum(map(len, call.inputs)),
            num_sequences=1,
            texts=texts,
            refusal=partial(self._catalogue.refusal, target),
            body=parsed,
            call=call,
            meter=meter_tag(tenant, target, "embedding", trace, arrived_unix_ms, parsed.metadata),
        )

    async def _look_up(self, tenant: Tenant, body: dict[str, Any]) -> Lookup:
        return await self._catalogue.look_up(tenant, body.get("model"), session_of(body))

    async def _call(self, body: EmbeddingBody, target: ModelTarget, tenant: Tenant, trace: TraceContext) -> EmbedCall:
        model = target.served
        config = model.base.embedding
        if config is None:
            raise BadRequest("this model does not embed", param="model", code="unsupported_operation")
        inputs = await model.encode_inputs(body.inputs, adds_special=body.adds_special)
        check_input_lengths([len(ids) for ids in inputs], tenant.plan.max_prompt_tokens, model.base.max_model_len)
        terms = tenant.terms(target.adapter, new_nonce())
        return EmbedCall(
            terms=replace(terms, tenant_name=self._tenant_label(tenant.name)),
            model_digest=target.model_digest,
            inputs=inputs,
            pooling=config.pooling,
            normalizes=config.normalizes,
            num_dimensions=body.num_dimensions,
            trace=trace,
        )


def _texts(body: EmbeddingBody, tokenizer: Tokenizer) -> list[str]:
    return [e if isinstance(e, str) else tokenizer.decode(e, skip_special=False) for e in body.inputs]
