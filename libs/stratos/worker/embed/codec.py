"""Edge of ``EmbedService``: a call as frozen records, with every check of what comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratos.api.worker.v1 import embed_pb2
from stratos.common.errors import BadRequest, ContextLengthExceeded, IdentityMismatch
from stratos.core.requests import limits
from stratos.core.requests.embedding import EmbeddingOutput, PoolingKind
from stratos.core.requests.terms import RequestTerms
from stratos.core.trace import TraceContext
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.codec.trace import trace_from_pb
from stratos.worker.decode.codec import check_id, check_terms

_POOLING: dict[int, PoolingKind] = {
    embed_pb2.POOLING_LAST: PoolingKind.LAST,
    embed_pb2.POOLING_MEAN: PoolingKind.MEAN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedCall:
    """A checked call: what its inputs have in common, and the inputs."""

    request_id: str
    attempt: int
    trace: TraceContext
    inputs: tuple[tuple[int, ...], ...]
    pooling: PoolingKind
    normalizes: bool
    num_dimensions: int | None
    terms: RequestTerms


def call_from_pb(message: embed_pb2.EmbedRequest, info: RunnerInfo, now_s: float) -> EmbedCall:
    """Check a call completely.

    Raises:
        BadRequest, ContextLengthExceeded: a field is malformed or out of range; ``param`` names it.
        IdentityMismatch: another base model is meant.
        QueueTimeout: the deadline has passed already.
    """
    if message.model_digest != info.identity.model_digest:
        raise IdentityMismatch("this worker serves another base model; ask the router for a new placement")
    if message.pooling not in _POOLING:
        raise BadRequest(f"unknown pooling {message.pooling}", param="pooling")
    terms = check_terms(message, now_s)
    return EmbedCall(
        request_id=check_id(message.request_id, "request_id"),
        attempt=message.attempt,
        trace=trace_from_pb(message.trace),
        inputs=_inputs(message, info),
        pooling=_POOLING[message.pooling],
        normalizes=message.normalizes,
        num_dimensions=message.num_dimensions if message.HasField("num_dimensions") else None,
        terms=terms,
    )


def _inputs(message: embed_pb2.EmbedRequest, info: RunnerInfo) -> tuple[tuple[int, ...], ...]:
    if not 1 <= len(message.inputs) <= limits.MAX_EMBEDDING_INPUTS:
        raise BadRequest(f"inputs must be 1 to {limits.MAX_EMBEDDING_INPUTS}", param="inputs")
    if any(len(entry.token_ids) > info.max_model_len for entry in message.inputs):
        raise ContextLengthExceeded(f"an input has more than {info.max_model_len} tokens", param="inputs")
    inputs = tuple(limits.check_token_ids(entry.token_ids, info.vocab_size, "inputs") for entry in message.inputs)
    if not all(inputs):
        raise BadRequest("an input to embed needs at least one token", param="inputs")
    return inputs


def response_to_pb(outputs: Sequence[EmbeddingOutput]) -> embed_pb2.EmbedResponse:
    """Vectors as a message."""
    return embed_pb2.EmbedResponse(
        embeddings=[embed_pb2.Embedding(values=o.values, num_cached_tokens=o.num_cached_tokens) for o in outputs]
    )
