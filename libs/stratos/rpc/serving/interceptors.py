"""The one server interceptor: duration metric, access by role and error mapping around every handler.

A handler that is an async generator is driven here with ``context.write``, so that a cancelled call closes
the generator at once and its ``finally`` blocks run; grpc itself leaves that to the garbage collector.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from stratos.common.bugs import report_bug
from stratos.common.errors import StratosError
from stratos.rpc.errors import ERROR_METADATA_KEY, status_code, to_error_detail
from stratos.rpc.metrics import RpcMetrics
from stratos.rpc.serving.access import Access

_log = logging.getLogger(__name__)
_Handler = Callable[[Any, Any], Awaitable[Any]]
_FACTORIES = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class EdgeInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every handler of a server; ``num_unary_open`` counts calls that will end by themselves.

    Args:
        metrics: of the service.
        access: which peer may call what; ``None`` without mTLS.
    """

    def __init__(self, metrics: RpcMetrics, access: Access | None = None) -> None:
        self._metrics = metrics
        self._access = access
        self.num_unary_open = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Replace the handler of a call by one with telemetry, access control and error mapping."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        inner = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        key = (bool(handler.request_streaming), bool(handler.response_streaming))
        wrapped = self._wrap(inner, handler_call_details.method, is_stream=key[1])
        return _FACTORIES[key](
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _wrap(self, inner: Callable[[Any, Any], Any], method: str, *, is_stream: bool) -> _Handler:
        run = _write_all(inner) if inspect.isasyncgenfunction(inner) else inner

        async def handler(request: Any, context: Any) -> Any:
            if not is_stream:
                self.num_unary_open += 1
                context.add_done_callback(self._on_unary_end)  # its handler's end comes before the answer is out
            async with self._edge(method, context, _request_label(request)):
                return await run(request, context)

        return handler

    def _on_unary_end(self, _context: Any) -> None:
        self.num_unary_open -= 1

    @asynccontextmanager
    async def _edge(self, method: str, context: Any, label: str) -> AsyncIterator[None]:
        started, code = time.monotonic(), grpc.StatusCode.OK
        try:
            if self._access is not None:
                self._access.check_caller(method, context)
            yield
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.AbortError:
            code = context.code() or grpc.StatusCode.UNKNOWN
            raise
        except StratosError as error:
            code = status_code(error)
            await _abort(context, error)
        except Exception:
            code = grpc.StatusCode.INTERNAL
            await _abort(context, report_bug(_log, f"in {method}{label}"))
        finally:
            self._metrics.observe(method, code.name, time.monotonic() - started)


def _write_all(generator: Callable[[Any, Any], Any]) -> _Handler:
    async def handler(request: Any, context: Any) -> None:
        async with aclosing(generator(request, context)) as messages:
            async for message in messages:
                await context.write(message)

    return handler


def _request_label(request: Any) -> str:
    """For log lines: the id of the HTTP request that a message belongs to, if it says so."""
    request_id = getattr(getattr(request, "trace", None), "http_request_id", "")
    return f" for request {request_id}" if request_id else ""


async def _abort(context: Any, error: StratosError) -> None:
    if context.done():
        return
    detail = to_error_detail(error)
    metadata = ((ERROR_METADATA_KEY, detail.SerializeToString()),)
    await context.abort(status_code(error), detail.message, trailing_metadata=metadata)
