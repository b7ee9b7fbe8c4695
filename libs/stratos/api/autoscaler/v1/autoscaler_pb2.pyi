from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDecisionsRequest(_message.Message):
    __slots__ = ("max_entries",)
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    max_entries: int
    def __init__(self, max_entries: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("age_ms", "last_age_ms", "num_times", "role", "model", "mode", "direction", "reason", "blocked", "desired", "victim", "inputs")
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_TIMES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    VICTIM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    last_age_ms: int
    num_times: int
    role: str
    model: str
    mode: str
    direction: str
    reason: str
    blocked: str
    desired: int
    victim: str
    inputs: Inputs
    def __init__(self, age_ms: _Optional[int] = ..., last_age_ms: _Optional[int] = ..., num_times: _Optional[int] = ..., role: _Optional[str] = ..., model: _Optional[str] = ..., mode: _Optional[str] = ..., direction: _Optional[str] = ..., reason: _Optional[str] = ..., blocked: _Optional[str] = ..., desired: _Optional[int] = ..., victim: _Optional[str] = ..., inputs: _Optional[_Union[Inputs, _Mapping]] = ...) -> None: ...

class Inputs(_message.Message):
    __slots__ = ("num_live", "num_out", "num_starting", "num_draining", "backlog", "utilisation", "ttft_p95_ms", "is_partial")
    NUM_LIVE_FIELD_NUMBER: _ClassVar[int]
    NUM_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_STARTING_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAINING_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_MS_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    num_live: int
    num_out: int
    num_starting: int
    num_draining: int
    backlog: int
    utilisation: float
    ttft_p95_ms: float
    is_partial: bool
    def __init__(self, num_live: _Optional[int] = ..., num_out: _Optional[int] = ..., num_starting: _Optional[int] = ..., num_draining: _Optional[int] = ..., backlog: _Optional[int] = ..., utilisation: _Optional[float] = ..., ttft_p95_ms: _Optional[float] = ..., is_partial: _Optional[bool] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("decisions", "is_active", "problem")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    IS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    is_active: bool
    problem: str
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., is_active: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...
