from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ExchangeGatewaysRequest(_message.Message):
    __slots__ = ("gateways",)
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    gateways: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gateways: _Optional[_Iterable[str]] = ...) -> None: ...

class ExchangeGatewaysResponse(_message.Message):
    __slots__ = ("gateways",)
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    gateways: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gateways: _Optional[_Iterable[str]] = ...) -> None: ...
