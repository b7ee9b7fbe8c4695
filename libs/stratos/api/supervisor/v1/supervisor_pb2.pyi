from stratos.api.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListProcessesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Process(_message.Message):
    __slots__ = ("name", "pid", "address", "state", "role", "num_restarts", "metrics_address", "model_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NUM_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    pid: int
    address: str
    state: str
    role: _common_pb2.WorkerRole
    num_restarts: int
    metrics_address: str
    model_digest: str
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., role: _Optional[_Union[_common_pb2.WorkerRole, str]] = ..., num_restarts: _Optional[int] = ..., metrics_address: _Optional[str] = ..., model_digest: _Optional[str] = ...) -> None: ...

class ListProcessesResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ...) -> None: ...

class HoldLeaseRequest(_message.Message):
    __slots__ = ("holder", "ttl_ms")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    ttl_ms: int
    def __init__(self, holder: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class HoldLeaseResponse(_message.Message):
    __slots__ = ("is_held",)
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    is_held: bool
    def __init__(self, is_held: _Optional[bool] = ...) -> None: ...

class StartWorkerRequest(_message.Message):
    __slots__ = ("role", "holder")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    role: _common_pb2.WorkerRole
    holder: str
    def __init__(self, role: _Optional[_Union[_common_pb2.WorkerRole, str]] = ..., holder: _Optional[str] = ...) -> None: ...

class StartWorkerResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("name", "holder", "by_operator")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    BY_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    by_operator: bool
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ..., by_operator: _Optional[bool] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
