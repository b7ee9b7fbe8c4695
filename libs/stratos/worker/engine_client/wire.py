"""Messages between a worker and its engine process: msgpack of typed records, each after a 4-byte length.

    worker -> engine   Start, Call ..., and the end of the stream: stop
    engine -> worker   Started | StartFailed, then Reply, Stepped, Snapshot, Happened in the order in which things
                       happened, Died

Arguments and results are decoded by the type that the method has, so nothing but these records can be built from what
comes in.  KV payloads are not here: the data port moves them in the engine's process.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from inspect import isfunction
from pathlib import Path
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from stratos.common.error_codes import error_from_code
from stratos.common.errors import Internal, StratosError
from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.engine.contract.runner import RunnerInfo
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.transfer import FrameArrived, RingBroken
from stratos.worker.engine_client.base import EngineClient

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Log probabilities of a long prompt are some megabytes; a length above this is not one."""


def _types_of(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Types of a method's arguments, and of its result."""
    hints = get_type_hints(function)
    result = hints.pop("return")
    return GenericAlias(tuple, tuple(hints.values())), result


def _methods(contract: type, local: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    return {
        name: _types_of(function)
        for name, function in vars(contract).items()
        if isfunction(function) and not name.startswith("_") and name not in local
    }


PORT = "port."
"""Begins the names of the data port's methods."""
METHODS = _methods(EngineClient, {"subscribe", "unsubscribe", *EngineClient.__abstractmethods__}) | {
    PORT + name: types for name, types in _methods(DataPort, {"subscribe", "close"}).items()
}
"""Types of arguments and result by name of the method, from the annotations of ``EngineClient`` and ``DataPort``."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception: a ``StratosError`` by its code, another one by the name of its class."""

    kind: str
    message: str
    code: str = ""
    param: str | None = None
    after_s: float | None = None
    http_status: int = 500

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        if not isinstance(error, StratosError):
            return cls(type(error).__name__, str(error))
        return cls("", error.message, error.code, error.param, error.after_s, error.http_status)

    def exception(self) -> Exception:
        """The exception again; a class that is not part of the engine's contract becomes ``RuntimeError``."""
        if not self.kind:
            return error_from_code(
                self.code, self.message, param=self.param, after_s=self.after_s, http_status=self.http_status
            )
        classes: dict[str, type[Exception]] = {"KeyError": KeyError, "ValueError": ValueError}
        known = classes.get(self.kind)
        return known(self.message) if known else RuntimeError(f"{self.kind}: {self.message}")


class Start(msgspec.Struct, frozen=True, tag=True):
    """First message: what engine to make."""

    settings: bytes
    """JSON."""


class Call(msgspec.Struct, frozen=True, tag=True):
    """Call a method of the engine client, or of the data port, in the engine's process."""

    call_id: int
    """0: no reply is sent."""
    method: str
    arguments: msgspec.Raw


class Started(msgspec.Struct, frozen=True, tag=True):
    info: RunnerInfo
    has_device_pages: bool
    port_faults: dict[str, str]


class EngineStartFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot be made; the process ends."""

    failure: Failure


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Result of a call."""

    call_id: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: Failure | None = None


class Stepped(msgspec.Struct, frozen=True, tag=True):
    result: StepResult


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """The engine's status changed; it comes before the reply or result that it belongs to."""

    status: EngineStatus


class Happened(msgspec.Struct, frozen=True, tag=True):
    """At the data port: exactly one is set."""

    arrived: FrameArrived | None = None
    broken: RingBroken | None = None


class Died(msgspec.Struct, frozen=True, tag=True):
    """The step loop ended with an exception; the process ends."""

    failure: Failure


FromWorker = Start | Call
FromEngine = Started | EngineStartFailed | Reply | Stepped | Snapshot | Happened | Died


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, StratosError):
        return Failure.of(value)
    raise NotImplementedError(f"{type(value)} is not part of the engine's messages")


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    if kind is StratosError:
        error = msgspec.convert(value, Failure).exception()
        return error if isinstance(error, StratosError) else Internal(str(error))
    raise NotImplementedError(f"{kind} is not part of the engine's messages")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def encode(value: Any) -> bytes:
    """msgpack of a record."""
    return _ENCODER.encode(value)


def decode(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """A record of type ``kind``. Raises ``msgspec.DecodeError``, also for a record of another type."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_hook)


def send(writer: asyncio.StreamWriter, message: FromWorker | FromEngine) -> None:
    """Queue a message; does not wait."""
    data = encode(message)
    writer.write(_LENGTH.pack(len(data)))
    writer.write(data)


async def receive(reader: asyncio.StreamReader, kind: Any) -> Any:
    """The next message, of type ``kind``.

    Raises:
        asyncio.IncompleteReadError: the stream ended.
        ValueError: what came is no message; nothing after it can be read.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is above the limit of {MAX_MESSAGE_BYTES}")
    return decode(await reader.readexactly(length), kind)
