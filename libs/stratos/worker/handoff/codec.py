"""Fetch messages: protobuf to records and back.  The edge of both ends of a hand-off."""

from __future__ import annotations

from stratos.api.common.v1 import common_pb2
from stratos.api.kv.v1 import source_pb2
from stratos.common.errors import BadRequest
from stratos.core.kv import KvGeometry, KvRange
from stratos.kv_transfer.capabilities import Capabilities
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from stratos.rpc.codec.fields import EnumCodec, FlatField, nested, whole_ms
from stratos.rpc.codec.flat import FlatCodec, OneOfCodec
from stratos.rpc.codec.fleet import IDENTITY, REF
from stratos.rpc.codec.terms import terms_from_pb, terms_to_part
from stratos.rpc.codec.trace import TRACE
from stratos.rpc.errors import from_error_detail, to_error_detail
from stratos.worker.handoff.records import (
    Abort,
    AbortAck,
    Ack,
    Credit,
    Finish,
    Grant,
    Intent,
    Nack,
    NoRoom,
    Progress,
    Ready,
    ReceiverMessage,
    Refused,
    Sent,
    SourceMessage,
    SourcePhase,
)

MAX_FACT_CHARS = 128


def _check_facts(message: source_pb2.Capabilities) -> None:
    for field, value in message.ListFields():
        if len(value) > MAX_FACT_CHARS or not value.isascii() or not value.isprintable():
            text = f"capabilities.{field.name} must be at most {MAX_FACT_CHARS} printable characters"
            raise BadRequest(text, param=field.name)


_CAPABILITIES = FlatCodec(Capabilities, source_pb2.Capabilities, check=_check_facts)
"""Facts of a peer; what it leaves out is unknown."""
_SIZES = {"element_bytes", "scale_bytes", "num_state_layers", "state_layer_bytes"}
_GEOMETRY = FlatCodec(KvGeometry, common_pb2.KvGeometry, by_hand=_SIZES | {"num_sides"})
_INTENT = FlatCodec(
    Intent,
    source_pb2.Intent,
    fields={
        "identity": nested(IDENTITY),
        # sizes are not on the wire: they follow from ``kv_dtype`` and the model, which must be equal
        "geometry": FlatField(
            encode=_GEOMETRY.to_pb, decode=lambda message: _GEOMETRY.from_pb(message, **dict.fromkeys(_SIZES, 0))
        ),
        "receiver": nested(REF),
        "capabilities": nested(_CAPABILITIES),
        "trace": TRACE,
    },
    by_hand={"terms"},
)
_OFFER = FlatCodec(TransportOffer, source_pb2.TransportOffer)
_REQUESTS: OneOfCodec[ReceiverMessage, source_pb2.FetchRequest] = OneOfCodec(
    source_pb2.FetchRequest,
    {
        "grant": FlatCodec(Grant, source_pb2.Grant, fields={"offer": nested(_OFFER)}),
        "busy": FlatCodec(NoRoom, source_pb2.Busy),
        "credit": FlatCodec(Credit, source_pb2.Credit),
        "nack": FlatCodec(Nack, source_pb2.Nack),
        "ack": FlatCodec(Ack, source_pb2.Ack),
        "abort": FlatCodec(Abort, source_pb2.Abort),
    },
)
_PHASE = EnumCodec({phase: phase.value for phase in SourcePhase}, default=SourcePhase.UNSPECIFIED)
"""A phase that this build does not know is no reason to break: it counts as unspecified."""
_RESPONSES: OneOfCodec[SourceMessage, source_pb2.FetchResponse] = OneOfCodec(
    source_pb2.FetchResponse,
    {
        "progress": FlatCodec(
            Progress,
            source_pb2.Progress,
            fields={
                "phase": _PHASE.field,
                "slow_step_s": whole_ms("slow_step_ms"),
                "wait_s": whole_ms("wait_ms"),
                "compute_s": whole_ms("compute_ms"),
            },
        ),
        "ready": FlatCodec(
            Ready, source_pb2.Ready, fields={"source": nested(REF), "capabilities": nested(_CAPABILITIES)}
        ),
        "header": FlatCodec(
            FrameHeader,
            source_pb2.FrameHeader,
            inline={"kv_range": (KvRange, {})},
            by_hand={"source_rank", "destination_rank"},  # every engine has one rank: left at 0
        ),
        "sent": FlatCodec(Sent, source_pb2.Sent),
        "finish": FlatCodec(Finish, source_pb2.Finish),
        "abort_ack": FlatCodec(AbortAck, source_pb2.AbortAck),
    },
)


def request_to_pb(message: ReceiverMessage, now_s: float) -> source_pb2.FetchRequest:
    """The receiver's message as it leaves at ``now_s``."""
    if isinstance(message, Intent):
        return source_pb2.FetchRequest(intent=_INTENT.to_pb(message, terms=terms_to_part(message.terms, now_s)))
    return _REQUESTS.to_pb(message)


def request_from_pb(message: source_pb2.FetchRequest, now_s: float) -> ReceiverMessage:
    """The receiver's message as it arrives at ``now_s``.

    Raises:
        BadRequest: it is empty or malformed.
    """
    kind = message.WhichOneof("message")
    if kind is None:
        raise BadRequest("an empty message on a Fetch stream")
    if kind == "intent":
        return _INTENT.from_pb(message.intent, terms=terms_from_pb(message.intent.terms, now_s))
    return _REQUESTS.from_pb(message, kind)


def response_to_pb(message: SourceMessage) -> source_pb2.FetchResponse:
    """The source's message, for the wire."""
    if isinstance(message, Refused):
        return source_pb2.FetchResponse(error=to_error_detail(message.error))
    return _RESPONSES.to_pb(message)


def response_from_pb(message: source_pb2.FetchResponse) -> SourceMessage:
    """The source's message, from the wire.

    Raises:
        BadRequest: it is empty or malformed.
    """
    kind = message.WhichOneof("message")
    if kind is None:
        raise BadRequest("an empty message on a Fetch stream")
    if kind == "error":
        return Refused(from_error_detail(message.error))
    return _RESPONSES.from_pb(message, kind)
