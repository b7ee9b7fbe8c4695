"""Calls of ``EmbedService`` <-> records, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.api.worker.v1 import embed_pb2
from stratos.common.errors import BadRequest, FeatureUnavailable
from stratos.core.requests.embedding import EmbedCall, EmbeddingOutput, PoolingKind
from stratos.rpc.codec.terms import terms_from_pb, terms_to_pb
from stratos.rpc.codec.trace import trace_from_pb, trace_to_pb
from stratos.rpc.codec.unknown_fields import refuse_unknown_fields

_POOLING = {PoolingKind.LAST: embed_pb2.POOLING_LAST, PoolingKind.MEAN: embed_pb2.POOLING_MEAN}
_POOLING_BY_NUMBER: dict[int, PoolingKind] = {number: kind for kind, number in _POOLING.items()}


def call_to_pb(call: EmbedCall, now_s: float) -> embed_pb2.EmbedRequest:
    """A call as a message that leaves at ``now_s``."""
    return embed_pb2.EmbedRequest(
        request_id=call.request_id,
        attempt=call.attempt,
        inputs=[embed_pb2.EmbedInput(token_ids=ids) for ids in call.inputs],
        pooling=_POOLING[call.pooling],
        normalizes=call.normalizes,
        num_dimensions=call.num_dimensions,
        model_digest=call.model_digest,
        terms=terms_to_pb(call.terms, now_s),
        trace=trace_to_pb(call.trace),
    )


def call_from_pb(message: embed_pb2.EmbedRequest, now_s: float) -> EmbedCall:
    """A call from a message that arrives at ``now_s``.

    Raises:
        FeatureUnavailable: it has fields that this build does not know, or asks for an unknown pooling.
        BadRequest: it names no pooling.
    """
    refuse_unknown_fields(message)
    if message.pooling == embed_pb2.POOLING_UNSPECIFIED:
        raise BadRequest("pooling must be set", param="pooling")
    if message.pooling not in _POOLING_BY_NUMBER:
        raise FeatureUnavailable(f"this worker does not know pooling {message.pooling}")
    return EmbedCall(
        request_id=message.request_id,
        attempt=message.attempt,
        inputs=tuple(tuple(entry.token_ids) for entry in message.inputs),
        pooling=_POOLING_BY_NUMBER[message.pooling],
        normalizes=message.normalizes,
        num_dimensions=message.num_dimensions if message.HasField("num_dimensions") else None,
        model_digest=message.model_digest,
        terms=terms_from_pb(message.terms, now_s),
        trace=trace_from_pb(message.trace),
    )


def response_to_pb(outputs: Sequence[EmbeddingOutput]) -> embed_pb2.EmbedResponse:
    """Vectors as a message."""
    return embed_pb2.EmbedResponse(embeddings=[embed_pb2.Embedding(values=o.values) for o in outputs])
