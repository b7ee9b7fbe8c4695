"""Fetch messages: protobuf to records and back.  The edge of both ends of a hand-off."""

from __future__ import annotations

import dataclasses

from stratos.api.common.v1 import common_pb2
from stratos.api.kv.v1 import source_pb2
from stratos.common.errors import BadRequest
from stratos.core.kv import KvGeometry, KvRange
from stratos.kv_transfer.capabilities import Capabilities
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from stratos.rpc.codec.fleet import identity_from_pb, identity_to_pb, ref_from_pb, ref_to_pb
from stratos.rpc.codec.terms import terms_from_pb, terms_to_pb
from stratos.rpc.codec.trace import trace_from_pb, trace_to_pb
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


def request_to_pb(message: ReceiverMessage, now_s: float) -> source_pb2.FetchRequest:
    """Message of the receiver at ``now_s``, for the wire."""
    match message:
        case Intent():
            return source_pb2.FetchRequest(intent=_intent_to_pb(message, now_s))
        case Grant():
            return source_pb2.FetchRequest(
                grant=source_pb2.Grant(
                    num_skip_tokens=message.num_skip_tokens,
                    slots=message.slots,
                    offer=source_pb2.TransportOffer(**dataclasses.asdict(message.offer)),
                )
            )
        case NoRoom():
            return source_pb2.FetchRequest(busy=source_pb2.Busy(reason=message.reason))
        case Credit():
            return source_pb2.FetchRequest(credit=source_pb2.Credit(slots=message.slots))
        case Nack():
            return source_pb2.FetchRequest(nack=source_pb2.Nack(seq=message.seq, slot=message.slot))
        case Ack():
            return source_pb2.FetchRequest(ack=source_pb2.Ack())
        case Abort():
            return source_pb2.FetchRequest(abort=source_pb2.Abort(reason=message.reason))


def request_from_pb(message: source_pb2.FetchRequest, now_s: float) -> ReceiverMessage:
    """Record of a receiver's message that arrives at ``now_s``.

    Raises:
        BadRequest: it is empty or malformed.
    """
    match message.WhichOneof("message"):
        case "intent":
            return _intent_from_pb(message.intent, now_s)
        case "grant":
            offer = message.grant.offer
            return Grant(
                num_skip_tokens=message.grant.num_skip_tokens,
                slots=tuple(message.grant.slots),
                offer=TransportOffer(
                    transport=offer.transport,
                    pair=offer.pair,
                    address=offer.address,
                    slot_bytes=offer.slot_bytes,
                    num_slots=offer.num_slots,
                ),
            )
        case "busy":
            return NoRoom(reason=message.busy.reason)
        case "credit":
            return Credit(slots=tuple(message.credit.slots))
        case "nack":
            return Nack(seq=message.nack.seq, slot=message.nack.slot)
        case "ack":
            return Ack()
        case "abort":
            return Abort(reason=message.abort.reason)
        case _:
            raise BadRequest("an empty message on a Fetch stream")


def response_to_pb(message: SourceMessage) -> source_pb2.FetchResponse:
    """Message of the source, for the wire."""
    match message:
        case Progress():
            return source_pb2.FetchResponse(
                progress=source_pb2.Progress(
                    phase=f"SOURCE_PHASE_{message.phase.name}",
                    queue_position=message.queue_position,
                    engine_step=message.engine_step,
                    slow_step_ms=round(message.slow_step_s * 1000),
                )
            )
        case Ready():
            return source_pb2.FetchResponse(
                ready=source_pb2.Ready(
                    transport=message.transport,
                    source=ref_to_pb(message.source),
                    capabilities=source_pb2.Capabilities(**dataclasses.asdict(message.capabilities)),
                )
            )
        case FrameHeader():
            return source_pb2.FetchResponse(header=_header_to_pb(message))
        case Sent():
            return source_pb2.FetchResponse(sent=source_pb2.Sent(leg=message.leg, seq=message.seq))
        case Finish():
            return source_pb2.FetchResponse(finish=source_pb2.Finish(**dataclasses.asdict(message)))
        case AbortAck():
            return source_pb2.FetchResponse(abort_ack=source_pb2.AbortAck())
        case Refused():
            return source_pb2.FetchResponse(error=to_error_detail(message.error))


def response_from_pb(message: source_pb2.FetchResponse) -> SourceMessage:
    """Record of a source's message.

    Raises:
        BadRequest: it is empty or malformed.
    """
    match message.WhichOneof("message"):
        case "progress":
            return Progress(
                phase=_phase_from_pb(message.progress.phase),
                queue_position=message.progress.queue_position,
                engine_step=message.progress.engine_step,
                slow_step_s=message.progress.slow_step_ms / 1000,
            )
        case "ready":
            return Ready(
                transport=message.ready.transport,
                source=ref_from_pb(message.ready.source),
                capabilities=_capabilities_from_pb(message.ready.capabilities),
            )
        case "header":
            return _header_from_pb(message.header)
        case "sent":
            return Sent(leg=message.sent.leg, seq=message.sent.seq)
        case "finish":
            return Finish(
                num_frames=message.finish.num_frames,
                digest=message.finish.digest,
                queue_ns=message.finish.queue_ns,
                prefill_ns=message.finish.prefill_ns,
                num_computed_tokens=message.finish.num_computed_tokens,
                num_cached_tokens=message.finish.num_cached_tokens,
                device_ns=message.finish.device_ns,
            )
        case "abort_ack":
            return AbortAck()
        case "error":
            return Refused(from_error_detail(message.error))
        case _:
            raise BadRequest("an empty message on a Fetch stream")


def _phase_from_pb(number: int) -> SourcePhase:
    """A phase that this build does not know is no reason to break: it counts as unspecified."""
    known = {phase.value for phase in SourcePhase}
    return SourcePhase(number) if number in known else SourcePhase.UNSPECIFIED


def _header_to_pb(header: FrameHeader) -> source_pb2.FrameHeader:
    values = dataclasses.asdict(header)
    return source_pb2.FrameHeader(**values.pop("kv_range"), **values)


def _header_from_pb(header: source_pb2.FrameHeader) -> FrameHeader:
    kv_range = KvRange(header.token_begin, header.token_end, header.layer_begin, header.layer_end)
    others = {f.name: getattr(header, f.name) for f in dataclasses.fields(FrameHeader) if f.name != "kv_range"}
    return FrameHeader(kv_range=kv_range, **others)


def _intent_to_pb(intent: Intent, now_s: float) -> source_pb2.Intent:
    return source_pb2.Intent(
        handoff_id=intent.handoff_id,
        request_id=intent.request_id,
        attempt=intent.attempt,
        leg=intent.leg,
        token_ids=intent.token_ids,
        compute=intent.compute,
        identity=identity_to_pb(intent.identity),
        geometry=_geometry_to_pb(intent.geometry),
        receiver=ref_to_pb(intent.receiver),
        transports=intent.transports,
        capabilities=source_pb2.Capabilities(**dataclasses.asdict(intent.capabilities)),
        terms=terms_to_pb(intent.terms, now_s),
        trace=trace_to_pb(intent.trace),
    )


def _intent_from_pb(intent: source_pb2.Intent, now_s: float) -> Intent:
    return Intent(
        handoff_id=intent.handoff_id,
        request_id=intent.request_id,
        attempt=intent.attempt,
        leg=intent.leg,
        token_ids=tuple(intent.token_ids),
        compute=intent.compute,
        identity=identity_from_pb(intent.identity),
        geometry=_geometry_from_pb(intent.geometry),
        receiver=ref_from_pb(intent.receiver),
        transports=tuple(intent.transports),
        capabilities=_capabilities_from_pb(intent.capabilities),
        terms=terms_from_pb(intent.terms, now_s),
        trace=trace_from_pb(intent.trace),
    )


def _geometry_to_pb(geometry: KvGeometry) -> common_pb2.KvGeometry:
    return common_pb2.KvGeometry(
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_size=geometry.block_size,
        tensor_parallel_size=geometry.tensor_parallel_size,
        pipeline_parallel_size=geometry.pipeline_parallel_size,
    )


def _geometry_from_pb(geometry: common_pb2.KvGeometry) -> KvGeometry:
    """Element size is not on the wire: it follows from ``kv_dtype``, which must be equal."""
    return KvGeometry(
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_size=geometry.block_size,
        element_bytes=0,
        tensor_parallel_size=geometry.tensor_parallel_size,
        pipeline_parallel_size=geometry.pipeline_parallel_size,
    )


def _capabilities_from_pb(found: source_pb2.Capabilities) -> Capabilities:
    """Facts of a peer; what it leaves out is unknown."""
    facts = {field.name: getattr(found, field.name) for field in dataclasses.fields(Capabilities)}
    for name, value in facts.items():
        if len(value) > MAX_FACT_CHARS or not value.isascii() or not value.isprintable():
            raise BadRequest(f"capabilities.{name} must be at most {MAX_FACT_CHARS} printable characters", param=name)
    return Capabilities(**facts)
