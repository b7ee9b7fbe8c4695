from stratos.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SleepState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLEEP_STATE_UNSPECIFIED: _ClassVar[SleepState]
    SLEEP_STATE_FALLING_ASLEEP: _ClassVar[SleepState]
    SLEEP_STATE_ASLEEP: _ClassVar[SleepState]
    SLEEP_STATE_WAKING: _ClassVar[SleepState]
    SLEEP_STATE_FAILED: _ClassVar[SleepState]
    SLEEP_STATE_STANDBY: _ClassVar[SleepState]
SLEEP_STATE_UNSPECIFIED: SleepState
SLEEP_STATE_FALLING_ASLEEP: SleepState
SLEEP_STATE_ASLEEP: SleepState
SLEEP_STATE_WAKING: SleepState
SLEEP_STATE_FAILED: SleepState
SLEEP_STATE_STANDBY: SleepState

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_ms", "router")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    router: str
    def __init__(self, interval_ms: _Optional[int] = ..., router: _Optional[str] = ...) -> None: ...

class ServiceMark(_message.Message):
    __slots__ = ("tenant", "priority_class", "start", "counter")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    priority_class: int
    start: float
    counter: float
    def __init__(self, tenant: _Optional[str] = ..., priority_class: _Optional[int] = ..., start: _Optional[float] = ..., counter: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "engine_step", "is_computing", "blocks", "staging", "num_waiting", "num_running", "num_queued_tokens", "num_handoffs", "num_orphans", "is_draining", "not_ready_reason", "identity", "resident_adapter_digests", "block_size", "max_num_seqs", "slow_step_ms", "version", "num_promised_blocks", "p90_output_tokens", "num_free_batch_slots", "num_free_adapter_slots", "tenant_tokens", "features", "protocol_version", "ttft_ms", "itl_ms", "zone", "kv_watermark", "num_routers", "placing_routers", "pool", "service_marks", "region", "host_load_ratio", "disk_load_ratio", "sleep_state", "is_spot")
    class TenantTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEP_FIELD_NUMBER: _ClassVar[int]
    IS_COMPUTING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    NUM_ORPHANS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_ADAPTER_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    SLOW_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMISED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    P90_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BATCH_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_ADAPTER_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    ITL_MS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    KV_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUTERS_FIELD_NUMBER: _ClassVar[int]
    PLACING_ROUTERS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SERVICE_MARKS_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    HOST_LOAD_RATIO_FIELD_NUMBER: _ClassVar[int]
    DISK_LOAD_RATIO_FIELD_NUMBER: _ClassVar[int]
    SLEEP_STATE_FIELD_NUMBER: _ClassVar[int]
    IS_SPOT_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerRef
    engine_step: int
    is_computing: bool
    blocks: _common_pb2.BlockLedger
    staging: _common_pb2.StagingLedger
    num_waiting: int
    num_running: int
    num_queued_tokens: int
    num_handoffs: int
    num_orphans: int
    is_draining: bool
    not_ready_reason: str
    identity: _common_pb2.KvIdentity
    resident_adapter_digests: _containers.RepeatedScalarFieldContainer[str]
    block_size: int
    max_num_seqs: int
    slow_step_ms: int
    version: int
    num_promised_blocks: int
    p90_output_tokens: int
    num_free_batch_slots: int
    num_free_adapter_slots: int
    tenant_tokens: _containers.ScalarMap[str, int]
    features: _containers.RepeatedScalarFieldContainer[str]
    protocol_version: int
    ttft_ms: float
    itl_ms: float
    zone: str
    kv_watermark: float
    num_routers: int
    placing_routers: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    service_marks: _containers.RepeatedCompositeFieldContainer[ServiceMark]
    region: str
    host_load_ratio: float
    disk_load_ratio: float
    sleep_state: SleepState
    is_spot: bool
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerRef, _Mapping]] = ..., engine_step: _Optional[int] = ..., is_computing: _Optional[bool] = ..., blocks: _Optional[_Union[_common_pb2.BlockLedger, _Mapping]] = ..., staging: _Optional[_Union[_common_pb2.StagingLedger, _Mapping]] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_queued_tokens: _Optional[int] = ..., num_handoffs: _Optional[int] = ..., num_orphans: _Optional[int] = ..., is_draining: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., identity: _Optional[_Union[_common_pb2.KvIdentity, _Mapping]] = ..., resident_adapter_digests: _Optional[_Iterable[str]] = ..., block_size: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., slow_step_ms: _Optional[int] = ..., version: _Optional[int] = ..., num_promised_blocks: _Optional[int] = ..., p90_output_tokens: _Optional[int] = ..., num_free_batch_slots: _Optional[int] = ..., num_free_adapter_slots: _Optional[int] = ..., tenant_tokens: _Optional[_Mapping[str, int]] = ..., features: _Optional[_Iterable[str]] = ..., protocol_version: _Optional[int] = ..., ttft_ms: _Optional[float] = ..., itl_ms: _Optional[float] = ..., zone: _Optional[str] = ..., kv_watermark: _Optional[float] = ..., num_routers: _Optional[int] = ..., placing_routers: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., service_marks: _Optional[_Iterable[_Union[ServiceMark, _Mapping]]] = ..., region: _Optional[str] = ..., host_load_ratio: _Optional[float] = ..., disk_load_ratio: _Optional[float] = ..., sleep_state: _Optional[_Union[SleepState, str]] = ..., is_spot: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitDrainedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitDrainedResponse(_message.Message):
    __slots__ = ("num_handed_back", "num_offered", "num_fetched", "num_fetched_tokens")
    NUM_HANDED_BACK_FIELD_NUMBER: _ClassVar[int]
    NUM_OFFERED_FIELD_NUMBER: _ClassVar[int]
    NUM_FETCHED_FIELD_NUMBER: _ClassVar[int]
    NUM_FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_handed_back: int
    num_offered: int
    num_fetched: int
    num_fetched_tokens: int
    def __init__(self, num_handed_back: _Optional[int] = ..., num_offered: _Optional[int] = ..., num_fetched: _Optional[int] = ..., num_fetched_tokens: _Optional[int] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
