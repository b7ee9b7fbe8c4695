from stratos.api.common.v1 import common_pb2 as _common_pb2
from stratos.api.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Work(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_UNSPECIFIED: _ClassVar[Work]
    WORK_EMBEDDING: _ClassVar[Work]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_FINISHED: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_SETTLED: _ClassVar[Outcome]
WORK_UNSPECIFIED: Work
WORK_EMBEDDING: Work
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_FINISHED: Outcome
OUTCOME_CANCELLED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_SETTLED: Outcome

class SessionRequest(_message.Message):
    __slots__ = ("calls", "cancelled")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[SessionCall]
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, calls: _Optional[_Iterable[_Union[SessionCall, _Mapping]]] = ..., cancelled: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionCall(_message.Message):
    __slots__ = ("call_id", "schedule", "complete")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    schedule: ScheduleRequest
    complete: CompleteRequest
    def __init__(self, call_id: _Optional[int] = ..., schedule: _Optional[_Union[ScheduleRequest, _Mapping]] = ..., complete: _Optional[_Union[CompleteRequest, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[SessionAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[SessionAnswer, _Mapping]]] = ...) -> None: ...

class SessionAnswer(_message.Message):
    __slots__ = ("call_id", "schedule", "complete", "error")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    schedule: ScheduleResponse
    complete: CompleteResponse
    error: _common_pb2.ErrorDetail
    def __init__(self, call_id: _Optional[int] = ..., schedule: _Optional[_Union[ScheduleResponse, _Mapping]] = ..., complete: _Optional[_Union[CompleteResponse, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "terms", "model_digest", "num_prompt_tokens", "max_tokens", "excluded_incarnations", "waited_ms", "num_emitted_tokens", "num_choices", "work", "trace", "is_move", "is_suspect", "refusals", "required_features", "block_hashes", "session_key", "zone", "prompt_digest", "hung_incarnations", "share", "overflow_after_ms", "region")
    class RefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_EMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    IS_MOVE_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HUNG_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    terms: _common_pb2.RequestTerms
    model_digest: str
    num_prompt_tokens: int
    max_tokens: int
    excluded_incarnations: _containers.RepeatedScalarFieldContainer[str]
    waited_ms: int
    num_emitted_tokens: int
    num_choices: int
    work: Work
    trace: _common_pb2.TraceContext
    is_move: bool
    is_suspect: bool
    refusals: _containers.ScalarMap[str, int]
    required_features: _containers.RepeatedScalarFieldContainer[str]
    block_hashes: _containers.RepeatedScalarFieldContainer[int]
    session_key: int
    zone: str
    prompt_digest: bytes
    hung_incarnations: _containers.RepeatedScalarFieldContainer[str]
    share: PlanShare
    overflow_after_ms: int
    region: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., terms: _Optional[_Union[_common_pb2.RequestTerms, _Mapping]] = ..., model_digest: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., excluded_incarnations: _Optional[_Iterable[str]] = ..., waited_ms: _Optional[int] = ..., num_emitted_tokens: _Optional[int] = ..., num_choices: _Optional[int] = ..., work: _Optional[_Union[Work, str]] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., is_move: _Optional[bool] = ..., is_suspect: _Optional[bool] = ..., refusals: _Optional[_Mapping[str, int]] = ..., required_features: _Optional[_Iterable[str]] = ..., block_hashes: _Optional[_Iterable[int]] = ..., session_key: _Optional[int] = ..., zone: _Optional[str] = ..., prompt_digest: _Optional[bytes] = ..., hung_incarnations: _Optional[_Iterable[str]] = ..., share: _Optional[_Union[PlanShare, _Mapping]] = ..., overflow_after_ms: _Optional[int] = ..., region: _Optional[str] = ...) -> None: ...

class PlanShare(_message.Message):
    __slots__ = ("weight", "max_batch_ratio", "kv_headroom_ratio", "pools", "kept_kv")
    class KeptKvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_RATIO_FIELD_NUMBER: _ClassVar[int]
    KV_HEADROOM_RATIO_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    KEPT_KV_FIELD_NUMBER: _ClassVar[int]
    weight: int
    max_batch_ratio: float
    kv_headroom_ratio: float
    pools: _containers.RepeatedScalarFieldContainer[str]
    kept_kv: _containers.ScalarMap[str, float]
    def __init__(self, weight: _Optional[int] = ..., max_batch_ratio: _Optional[float] = ..., kv_headroom_ratio: _Optional[float] = ..., pools: _Optional[_Iterable[str]] = ..., kept_kv: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScheduleResponse(_message.Message):
    __slots__ = ("decode", "prefill", "handoff_id", "queued_ms", "status_version", "cache_layout", "scores", "rejections", "num_unnamed", "queue_samples")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RejectionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUED_MS_FIELD_NUMBER: _ClassVar[int]
    STATUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    CACHE_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNNAMED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    decode: _common_pb2.WorkerRef
    prefill: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerRef]
    handoff_id: str
    queued_ms: int
    status_version: int
    cache_layout: CacheLayout
    scores: _containers.ScalarMap[str, float]
    rejections: _containers.ScalarMap[str, str]
    num_unnamed: int
    queue_samples: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, decode: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., prefill: _Optional[_Iterable[_Union[_common_pb2.WorkerRef, _Mapping]]] = ..., handoff_id: _Optional[str] = ..., queued_ms: _Optional[int] = ..., status_version: _Optional[int] = ..., cache_layout: _Optional[_Union[CacheLayout, _Mapping]] = ..., scores: _Optional[_Mapping[str, float]] = ..., rejections: _Optional[_Mapping[str, str]] = ..., num_unnamed: _Optional[int] = ..., queue_samples: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheLayout(_message.Message):
    __slots__ = ("identity", "block_size")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.KvIdentity
    block_size: int
    def __init__(self, identity: _Optional[_Union[_common_pb2.KvIdentity, _Mapping]] = ..., block_size: _Optional[int] = ...) -> None: ...

class AttemptReport(_message.Message):
    __slots__ = ("handoff_id", "outcome", "num_output_tokens")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    outcome: Outcome
    num_output_tokens: int
    def __init__(self, handoff_id: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[AttemptReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[AttemptReport, _Mapping]]] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Conviction(_message.Message):
    __slots__ = ("tenant", "prompt_digest", "left_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    prompt_digest: bytes
    left_ms: int
    def __init__(self, tenant: _Optional[str] = ..., prompt_digest: _Optional[bytes] = ..., left_ms: _Optional[int] = ...) -> None: ...

class ExchangeConvictionsRequest(_message.Message):
    __slots__ = ("incarnation", "cursor", "convictions")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CONVICTIONS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    cursor: int
    convictions: _containers.RepeatedCompositeFieldContainer[Conviction]
    def __init__(self, incarnation: _Optional[str] = ..., cursor: _Optional[int] = ..., convictions: _Optional[_Iterable[_Union[Conviction, _Mapping]]] = ...) -> None: ...

class ExchangeConvictionsResponse(_message.Message):
    __slots__ = ("incarnation", "cursor", "convictions")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CONVICTIONS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    cursor: int
    convictions: _containers.RepeatedCompositeFieldContainer[Conviction]
    def __init__(self, incarnation: _Optional[str] = ..., cursor: _Optional[int] = ..., convictions: _Optional[_Iterable[_Union[Conviction, _Mapping]]] = ...) -> None: ...

class GatewayLoad(_message.Message):
    __slots__ = ("gateway", "model_digest", "num_open", "num_judged", "num_violations", "first_tokens", "age_ms", "num_batch_lines", "num_batch_lines_due", "client_age_ms")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_OPEN_FIELD_NUMBER: _ClassVar[int]
    NUM_JUDGED_FIELD_NUMBER: _ClassVar[int]
    NUM_VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCH_LINES_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCH_LINES_DUE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    model_digest: str
    num_open: int
    num_judged: int
    num_violations: int
    first_tokens: _containers.RepeatedScalarFieldContainer[int]
    age_ms: int
    num_batch_lines: int
    num_batch_lines_due: int
    client_age_ms: int
    def __init__(self, gateway: _Optional[str] = ..., model_digest: _Optional[str] = ..., num_open: _Optional[int] = ..., num_judged: _Optional[int] = ..., num_violations: _Optional[int] = ..., first_tokens: _Optional[_Iterable[int]] = ..., age_ms: _Optional[int] = ..., num_batch_lines: _Optional[int] = ..., num_batch_lines_due: _Optional[int] = ..., client_age_ms: _Optional[int] = ...) -> None: ...

class ReportLoadRequest(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: GatewayLoad
    def __init__(self, load: _Optional[_Union[GatewayLoad, _Mapping]] = ...) -> None: ...

class ReportLoadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueDepth(_message.Message):
    __slots__ = ("model_digest", "priority_class", "num_requests", "num_tokens", "oldest_ms", "work")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    priority_class: int
    num_requests: int
    num_tokens: int
    oldest_ms: int
    work: Work
    def __init__(self, model_digest: _Optional[str] = ..., priority_class: _Optional[int] = ..., num_requests: _Optional[int] = ..., num_tokens: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., work: _Optional[_Union[Work, str]] = ...) -> None: ...

class FleetWorker(_message.Message):
    __slots__ = ("status", "is_live", "out_reason", "age_ms", "num_booked", "worker", "is_clear")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    IS_LIVE_FIELD_NUMBER: _ClassVar[int]
    OUT_REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_BOOKED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IS_CLEAR_FIELD_NUMBER: _ClassVar[int]
    status: _worker_pb2.WorkerStatus
    is_live: bool
    out_reason: str
    age_ms: int
    num_booked: int
    worker: _common_pb2.WorkerRef
    is_clear: bool
    def __init__(self, status: _Optional[_Union[_worker_pb2.WorkerStatus, _Mapping]] = ..., is_live: _Optional[bool] = ..., out_reason: _Optional[str] = ..., age_ms: _Optional[int] = ..., num_booked: _Optional[int] = ..., worker: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., is_clear: _Optional[bool] = ...) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("queues", "workers", "gateways")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueDepth]
    workers: _containers.RepeatedCompositeFieldContainer[FleetWorker]
    gateways: _containers.RepeatedCompositeFieldContainer[GatewayLoad]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueDepth, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[FleetWorker, _Mapping]]] = ..., gateways: _Optional[_Iterable[_Union[GatewayLoad, _Mapping]]] = ...) -> None: ...

class ForgetTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ForgetTenantResponse(_message.Message):
    __slots__ = ("num_workers", "num_failed")
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    num_workers: int
    num_failed: int
    def __init__(self, num_workers: _Optional[int] = ..., num_failed: _Optional[int] = ...) -> None: ...
