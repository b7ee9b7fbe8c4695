from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole

class WorkerRef(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address", "role")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    address: str
    role: WorkerRole
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[_Union[WorkerRole, str]] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "http_request_id")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    HTTP_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    http_request_id: str
    def __init__(self, traceparent: _Optional[str] = ..., http_request_id: _Optional[str] = ...) -> None: ...

class AdapterRef(_message.Message):
    __slots__ = ("digest", "uri")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    digest: str
    uri: str
    def __init__(self, digest: _Optional[str] = ..., uri: _Optional[str] = ...) -> None: ...

class RequestTerms(_message.Message):
    __slots__ = ("tenant", "cache_salt", "priority_class", "adapter", "deadline_ms", "end_ms", "tenant_name", "age_ms", "pins", "kv_key")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_NAME_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    KV_KEY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    cache_salt: bytes
    priority_class: int
    adapter: AdapterRef
    deadline_ms: int
    end_ms: int
    tenant_name: str
    age_ms: int
    pins: PinTerms
    kv_key: bytes
    def __init__(self, tenant: _Optional[str] = ..., cache_salt: _Optional[bytes] = ..., priority_class: _Optional[int] = ..., adapter: _Optional[_Union[AdapterRef, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., tenant_name: _Optional[str] = ..., age_ms: _Optional[int] = ..., pins: _Optional[_Union[PinTerms, _Mapping]] = ..., kv_key: _Optional[bytes] = ...) -> None: ...

class Breakpoint(_message.Message):
    __slots__ = ("num_tokens", "ttl_s")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    ttl_s: int
    def __init__(self, num_tokens: _Optional[int] = ..., ttl_s: _Optional[int] = ...) -> None: ...

class PinTerms(_message.Message):
    __slots__ = ("breakpoints", "device_ratio", "host_ratio")
    BREAKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_RATIO_FIELD_NUMBER: _ClassVar[int]
    HOST_RATIO_FIELD_NUMBER: _ClassVar[int]
    breakpoints: _containers.RepeatedCompositeFieldContainer[Breakpoint]
    device_ratio: float
    host_ratio: float
    def __init__(self, breakpoints: _Optional[_Iterable[_Union[Breakpoint, _Mapping]]] = ..., device_ratio: _Optional[float] = ..., host_ratio: _Optional[float] = ...) -> None: ...

class BlockLedger(_message.Message):
    __slots__ = ("num_total", "num_free", "num_cached", "num_allocated", "num_reserved", "num_fenced")
    NUM_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVED_FIELD_NUMBER: _ClassVar[int]
    NUM_FENCED_FIELD_NUMBER: _ClassVar[int]
    num_total: int
    num_free: int
    num_cached: int
    num_allocated: int
    num_reserved: int
    num_fenced: int
    def __init__(self, num_total: _Optional[int] = ..., num_free: _Optional[int] = ..., num_cached: _Optional[int] = ..., num_allocated: _Optional[int] = ..., num_reserved: _Optional[int] = ..., num_fenced: _Optional[int] = ...) -> None: ...

class StagingLedger(_message.Message):
    __slots__ = ("num_total", "num_free", "num_granted", "num_quarantined")
    NUM_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_GRANTED_FIELD_NUMBER: _ClassVar[int]
    NUM_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    num_total: int
    num_free: int
    num_granted: int
    num_quarantined: int
    def __init__(self, num_total: _Optional[int] = ..., num_free: _Optional[int] = ..., num_granted: _Optional[int] = ..., num_quarantined: _Optional[int] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "param", "retry_after_ms", "http_status", "shed_reason", "queue_samples")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    SHED_REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    retry_after_ms: int
    http_status: int
    shed_reason: str
    queue_samples: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., http_status: _Optional[int] = ..., shed_reason: _Optional[str] = ..., queue_samples: _Optional[_Iterable[int]] = ...) -> None: ...

class KvIdentity(_message.Message):
    __slots__ = ("model_digest", "kv_dtype", "rope_variant", "numerics_id", "protocol_version")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROPE_VARIANT_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    kv_dtype: str
    rope_variant: str
    numerics_id: str
    protocol_version: int
    def __init__(self, model_digest: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., rope_variant: _Optional[str] = ..., numerics_id: _Optional[str] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class KvGeometry(_message.Message):
    __slots__ = ("num_layers", "num_kv_heads", "head_dim", "block_size", "tensor_parallel_size", "pipeline_parallel_size")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    def __init__(self, num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_size: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ...) -> None: ...
