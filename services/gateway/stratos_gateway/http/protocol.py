"""uvicorn's HTTP protocol with the bounds that it lacks, since any client that can connect may use them up.

    head (request line and headers)   at most ``MAX_HEAD_BYTES``, complete within ``head_timeout_s``, from the
                                      moment of connecting or, on a kept connection, from its first byte
    a whole message                   at most ``max_message_bytes``, with what its framing adds to the body
    what follows an early answer      the rest of a request that was answered before it was read gets
                                      ``head_timeout_s`` as well, then the connection ends

What cannot be understood is answered in OpenAI's shape like every other error.  The time of an idle kept
connection is uvicorn's; body and time of a request that is being served belong to ``http_body``.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stratos.common.errors import BadRequest
from stratos.common.ids import new_id
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.limits import HttpLimits

MAX_HEAD_BYTES = 64 * 1024
"""Other servers take 8 to 64 KiB."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        limits: its bounds.
        arguments: of uvicorn's protocol.
    """

    def __init__(self, limits: HttpLimits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._in_head = True
        self._in_message = False
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head's time begins."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to time."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, parse, and refuse what is too much."""
        if self.transport.is_closing():
            return
        self._num_bytes += len(data)
        if self._in_head and self._timer is None:
            self._start_timer()
        super().data_received(data)
        if self._num_bytes > (MAX_HEAD_BYTES if self._in_head else self._limits.max_message_bytes):
            text = f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text, "headers_too_large")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there in time."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is there; what follows is the next one's head."""
        self._in_head, self._in_message, self._num_bytes = True, False, 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is out; the rest of its request, if any, does not get for ever."""
        super().on_response_complete()
        if self._in_message and not self.transport.is_closing():
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers when it does not understand."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request", "invalid_http")

    def end_when_idle(self) -> None:
        """End after the answer under way; one that has not sent its first request yet is still answered."""
        if self.cycle is not None:
            self.shutdown()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late(self) -> None:
        if self._in_message and self._in_head:
            text = f"the headers did not arrive within {self._limits.head_timeout_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, text, "request_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, message: str, code: str) -> None:
        """Answer, unless another answer is on its way, and end the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or (self.cycle.response_complete and self._in_head):
            body = orjson.dumps(error_body(BadRequest(message, code=code)))
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                f"x-request-id: {new_id('req')}",
                "connection: close",
            )
            self.transport.write("\r\n".join((*head, "", "")).encode() + body)
        self.transport.close()
