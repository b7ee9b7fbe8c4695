from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WatchCacheRequest(_message.Message):
    __slots__ = ("incarnation", "after")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    after: int
    def __init__(self, incarnation: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchCacheResponse(_message.Message):
    __slots__ = ("incarnation", "after", "last", "stored", "removed", "is_dump", "on_host", "on_disk")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    IS_DUMP_FIELD_NUMBER: _ClassVar[int]
    ON_HOST_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    after: int
    last: int
    stored: _containers.RepeatedScalarFieldContainer[int]
    removed: _containers.RepeatedScalarFieldContainer[int]
    is_dump: bool
    on_host: _containers.RepeatedScalarFieldContainer[int]
    on_disk: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[str] = ..., after: _Optional[int] = ..., last: _Optional[int] = ..., stored: _Optional[_Iterable[int]] = ..., removed: _Optional[_Iterable[int]] = ..., is_dump: _Optional[bool] = ..., on_host: _Optional[_Iterable[int]] = ..., on_disk: _Optional[_Iterable[int]] = ...) -> None: ...

class ForgetTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ForgetTenantResponse(_message.Message):
    __slots__ = ("num_forgotten",)
    NUM_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    num_forgotten: int
    def __init__(self, num_forgotten: _Optional[int] = ...) -> None: ...
