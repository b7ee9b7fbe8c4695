"""Calls of ``EmbedService`` <-> records."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.api.worker.v1 import embed_pb2
from stratos.common.errors import BadRequest, FeatureUnavailable
from stratos.core.requests.embedding import EmbedCall, EmbeddingOutput, PoolingKind
from stratos.rpc.codec.fields import EnumCodec, FlatField
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.codec.terms import terms_from_pb, terms_to_part
from stratos.rpc.codec.trace import TRACE
from stratos.rpc.codec.unknown_fields import refuse_unknown_fields

_POOLING_NUMBERS = {PoolingKind.LAST: embed_pb2.POOLING_LAST, PoolingKind.MEAN: embed_pb2.POOLING_MEAN}
_CALL = FlatCodec(
    EmbedCall,
    embed_pb2.EmbedRequest,
    fields={
        "inputs": FlatField(
            encode=lambda inputs: [embed_pb2.EmbedInput(token_ids=ids) for ids in inputs],
            decode=lambda entries: tuple(tuple(entry.token_ids) for entry in entries),
        ),
        "pooling": EnumCodec(_POOLING_NUMBERS).field,
        "trace": TRACE,
    },
    by_hand={"terms"},
)


def call_to_pb(call: EmbedCall, now_s: float) -> embed_pb2.EmbedRequest:
    """A call as a message that leaves at ``now_s``."""
    return _CALL.to_pb(call, terms=terms_to_part(call.terms, now_s))


def call_from_pb(message: embed_pb2.EmbedRequest, now_s: float) -> EmbedCall:
    """A call from a message that arrives at ``now_s``.

    Raises:
        FeatureUnavailable: it has fields that this build does not know, or asks for an unknown pooling.
        BadRequest: it names no pooling.
    """
    refuse_unknown_fields(message)
    if message.pooling == embed_pb2.POOLING_UNSPECIFIED:
        raise BadRequest("pooling must be set", param="pooling")
    if message.pooling not in _POOLING_NUMBERS.values():
        raise FeatureUnavailable(f"this worker does not know pooling {message.pooling}")
    return _CALL.from_pb(message, terms=terms_from_pb(message.terms, now_s))


def response_to_pb(outputs: Sequence[EmbeddingOutput]) -> embed_pb2.EmbedResponse:
    """Vectors as a message."""
    return embed_pb2.EmbedResponse(embeddings=[embed_pb2.Embedding(values=o.values) for o in outputs])
