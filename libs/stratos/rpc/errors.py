"""Errors on the wire: ``StratosError`` <-> gRPC status with an ``ErrorDetail`` in the trailing metadata.

A servicer raises a ``StratosError``; the interceptor turns it into status code, message and
``stratos-error-bin``; ``translate_errors`` on the calling side raises the same class again.  A status
without that metadata (the peer died, the deadline passed, a proxy answered) is mapped by its code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from stratos.api.common.v1 import common_pb2
from stratos.common.error_codes import error_from_code
from stratos.common.errors import (
    BadRequest,
    Internal,
    InvalidApiKey,
    NotFound,
    Overloaded,
    PermissionDenied,
    Retryable,
    StratosError,
    WorkerLost,
)

ERROR_METADATA_KEY = "stratos-error-bin"
MAX_MESSAGE_CHARS = 2000
"""Trailing metadata above 8 KiB is dropped by gRPC, together with the status; the text travels twice."""
MAX_QUEUE_SAMPLES = 32
"""Numbers of them; a router of this version sends at most 18."""

_BY_STATUS: dict[grpc.StatusCode, type[StratosError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.UNAUTHENTICATED: InvalidApiKey,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_WRITE_FAILED = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""What grpc.aio (issue 36066) tells of a call that ended while it wrote, in place of how the peer ended it."""


def status_code(error: StratosError) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    return grpc.StatusCode[error.grpc_code]


def to_error_detail(error: StratosError) -> common_pb2.ErrorDetail:
    """An error as a message, for trailing metadata and for streams."""
    detail = common_pb2.ErrorDetail(
        code=error.code, message=error.message[:MAX_MESSAGE_CHARS], http_status=error.http_status
    )
    if error.param is not None:
        detail.param = error.param[:MAX_MESSAGE_CHARS]
    if error.after_s is not None:
        detail.retry_after_ms = math.ceil(error.after_s * 1000)
    if isinstance(error, Overloaded) and error.reason:
        detail.shed_reason = error.reason
    detail.queue_samples.extend(error.queue_samples[:MAX_QUEUE_SAMPLES])
    return detail


def from_error_detail(detail: common_pb2.ErrorDetail) -> StratosError:
    """The error that a message describes; an unknown code keeps its name and takes the class of its HTTP status."""
    error = error_from_code(
        detail.code,
        detail.message,
        param=detail.param if detail.HasField("param") else None,
        after_s=detail.retry_after_ms / 1000 if detail.HasField("retry_after_ms") else None,
        http_status=detail.http_status or None,
        reason=detail.shed_reason,
    )
    error.is_from_peer = True
    error.queue_samples = tuple(detail.queue_samples[:MAX_QUEUE_SAMPLES])
    return error


def from_rpc_error(
    error: grpc.aio.AioRpcError, *, peer: str = "the peer", lost: type[Retryable] = WorkerLost
) -> StratosError:
    """The error of a failed call.

    Args:
        error: what grpc raised.
        peer: the called process, for the message.
        lost: class for "no answer": unreachable, gone in mid-call, or deadline passed.
    """
    detail = _find_detail(error.trailing_metadata() or ())
    if detail is not None:
        return from_error_detail(detail)
    code, text = error.code(), (error.details() or "")[:MAX_MESSAGE_CHARS]
    if code in _LOST or (code, text) == _WRITE_FAILED:
        return lost(f"{peer} did not answer ({code.name.lower()}: {text})")
    return _BY_STATUS.get(code, Internal)(f"{peer} answered {code.name.lower()}: {text}")


def _find_detail(metadata: Iterable[tuple[str, str | bytes]]) -> common_pb2.ErrorDetail | None:
    for key, value in metadata:
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            try:
                return common_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None


@asynccontextmanager
async def translate_errors(*, peer: str = "the peer", lost: type[Retryable] = WorkerLost) -> AsyncIterator[None]:
    """Raise ``StratosError`` in place of ``AioRpcError``; arguments as in ``from_rpc_error``.

    A channel that is closed cancels its calls, which must not look as if their caller had been cancelled.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer=peer, lost=lost) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise lost(f"{peer} did not answer: its channel was closed") from error
