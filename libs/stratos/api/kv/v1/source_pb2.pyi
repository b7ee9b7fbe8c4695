from stratos.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SourcePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_PHASE_UNSPECIFIED: _ClassVar[SourcePhase]
    SOURCE_PHASE_QUEUED: _ClassVar[SourcePhase]
    SOURCE_PHASE_LOADING_ADAPTER: _ClassVar[SourcePhase]
    SOURCE_PHASE_READY: _ClassVar[SourcePhase]
    SOURCE_PHASE_COMPUTING: _ClassVar[SourcePhase]
    SOURCE_PHASE_SENDING: _ClassVar[SourcePhase]
SOURCE_PHASE_UNSPECIFIED: SourcePhase
SOURCE_PHASE_QUEUED: SourcePhase
SOURCE_PHASE_LOADING_ADAPTER: SourcePhase
SOURCE_PHASE_READY: SourcePhase
SOURCE_PHASE_COMPUTING: SourcePhase
SOURCE_PHASE_SENDING: SourcePhase

class FetchRequest(_message.Message):
    __slots__ = ("intent", "grant", "busy", "credit", "nack", "ack", "abort")
    INTENT_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    intent: Intent
    grant: Grant
    busy: Busy
    credit: Credit
    nack: Nack
    ack: Ack
    abort: Abort
    def __init__(self, intent: _Optional[_Union[Intent, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("progress", "ready", "header", "sent", "finish", "abort_ack", "error")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ABORT_ACK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    ready: Ready
    header: FrameHeader
    sent: Sent
    finish: Finish
    abort_ack: AbortAck
    error: _common_pb2.ErrorDetail
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., header: _Optional[_Union[FrameHeader, _Mapping]] = ..., sent: _Optional[_Union[Sent, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., abort_ack: _Optional[_Union[AbortAck, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class Intent(_message.Message):
    __slots__ = ("handoff_id", "request_id", "attempt", "leg", "token_ids", "compute", "identity", "geometry", "receiver", "transports", "terms", "trace", "capabilities")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEG_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    request_id: str
    attempt: int
    leg: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    compute: bool
    identity: _common_pb2.KvIdentity
    geometry: _common_pb2.KvGeometry
    receiver: _common_pb2.WorkerRef
    transports: _containers.RepeatedScalarFieldContainer[str]
    terms: _common_pb2.RequestTerms
    trace: _common_pb2.TraceContext
    capabilities: Capabilities
    def __init__(self, handoff_id: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., leg: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., compute: _Optional[bool] = ..., identity: _Optional[_Union[_common_pb2.KvIdentity, _Mapping]] = ..., geometry: _Optional[_Union[_common_pb2.KvGeometry, _Mapping]] = ..., receiver: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., transports: _Optional[_Iterable[str]] = ..., terms: _Optional[_Union[_common_pb2.RequestTerms, _Mapping]] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("host", "shared_memory", "device", "fabric")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    host: str
    shared_memory: str
    device: str
    fabric: str
    def __init__(self, host: _Optional[str] = ..., shared_memory: _Optional[str] = ..., device: _Optional[str] = ..., fabric: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("transport", "source", "capabilities")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    transport: str
    source: _common_pb2.WorkerRef
    capabilities: Capabilities
    def __init__(self, transport: _Optional[str] = ..., source: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class TransportOffer(_message.Message):
    __slots__ = ("transport", "pair", "address", "slot_bytes", "num_slots")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    transport: str
    pair: str
    address: str
    slot_bytes: int
    num_slots: int
    def __init__(self, transport: _Optional[str] = ..., pair: _Optional[str] = ..., address: _Optional[str] = ..., slot_bytes: _Optional[int] = ..., num_slots: _Optional[int] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("num_skip_tokens", "slots", "offer")
    NUM_SKIP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    num_skip_tokens: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    offer: TransportOffer
    def __init__(self, num_skip_tokens: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., offer: _Optional[_Union[TransportOffer, _Mapping]] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("seq", "slot")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    slot: int
    def __init__(self, seq: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Abort(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "queue_position", "engine_step", "slow_step_ms", "num_tokens", "wait_ms", "compute_ms")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEP_FIELD_NUMBER: _ClassVar[int]
    SLOW_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    phase: SourcePhase
    queue_position: int
    engine_step: int
    slow_step_ms: int
    num_tokens: int
    wait_ms: int
    compute_ms: int
    def __init__(self, phase: _Optional[_Union[SourcePhase, str]] = ..., queue_position: _Optional[int] = ..., engine_step: _Optional[int] = ..., slow_step_ms: _Optional[int] = ..., num_tokens: _Optional[int] = ..., wait_ms: _Optional[int] = ..., compute_ms: _Optional[int] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("leg", "seq", "kv_group", "layer_begin", "layer_end", "token_begin", "token_end", "head_begin", "head_end", "source_rank", "destination_rank", "num_bytes", "checksum", "slot", "pair_seq")
    LEG_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KV_GROUP_FIELD_NUMBER: _ClassVar[int]
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_END_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    HEAD_BEGIN_FIELD_NUMBER: _ClassVar[int]
    HEAD_END_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PAIR_SEQ_FIELD_NUMBER: _ClassVar[int]
    leg: str
    seq: int
    kv_group: str
    layer_begin: int
    layer_end: int
    token_begin: int
    token_end: int
    head_begin: int
    head_end: int
    source_rank: int
    destination_rank: int
    num_bytes: int
    checksum: int
    slot: int
    pair_seq: int
    def __init__(self, leg: _Optional[str] = ..., seq: _Optional[int] = ..., kv_group: _Optional[str] = ..., layer_begin: _Optional[int] = ..., layer_end: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_end: _Optional[int] = ..., head_begin: _Optional[int] = ..., head_end: _Optional[int] = ..., source_rank: _Optional[int] = ..., destination_rank: _Optional[int] = ..., num_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., slot: _Optional[int] = ..., pair_seq: _Optional[int] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("leg", "seq")
    LEG_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    leg: str
    seq: int
    def __init__(self, leg: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("num_frames", "digest", "queue_ns", "prefill_ns", "num_computed_tokens", "num_cached_tokens", "device_ns")
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    num_frames: int
    digest: bytes
    queue_ns: int
    prefill_ns: int
    num_computed_tokens: int
    num_cached_tokens: int
    device_ns: int
    def __init__(self, num_frames: _Optional[int] = ..., digest: _Optional[bytes] = ..., queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., device_ns: _Optional[int] = ...) -> None: ...

class AbortAck(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InvalidateRequest(_message.Message):
    __slots__ = ("block_hashes",)
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class InvalidateResponse(_message.Message):
    __slots__ = ("num_forgotten",)
    NUM_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    num_forgotten: int
    def __init__(self, num_forgotten: _Optional[int] = ...) -> None: ...
