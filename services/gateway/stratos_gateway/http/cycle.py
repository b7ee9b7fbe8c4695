"""uvicorn's cycle of a request and its answer, which asks less of the interpreter and of the kernel for each.

Targets of requests are few, and read once.  Names and values of headers are checked together.  The head of an answer to
a POST leaves with the first part of its body, as ASGI lets a server do: a write is a call of the system, and a wake-up
of the client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_FRAMING = re.compile(b"content-length|transfer-encoding|connection")
"""In the names of headers that say where the answer ends, or the connection."""
_WITHOUT_BODY = (204, 304)
_KEPT_TARGETS, _SHORT_TARGET = 256, 128
"""Targets that are kept, of so many bytes at most."""
_CLOSE, _CHUNKED = b"connection: close\r\n", b"transfer-encoding: chunked\r\n"


def _say_nothing() -> None:
    """The connection has heard of the end."""


def read_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Path, its bytes, and query of a request's target; raises for one that is none."""
    return _read_short(target) if len(target) <= _SHORT_TARGET else _read(target)


def _read(target: bytes) -> tuple[str, bytes, bytes]:
    parsed = httptools.parse_url(target)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


_read_short = lru_cache(_KEPT_TARGETS)(_read)


class ChunkedParts:
    """``BodyParts`` of one connection."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    @property
    def is_open(self) -> bool:
        """The client is there, and not behind."""
        return not (self._flow.write_paused or self._transport.is_closing())

    def write(self, part: bytes) -> None:
        """Send a part as a chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))


class AnswerCycle(RequestResponseCycle):
    """One request; arguments are those of uvicorn's."""

    _head = b""
    """Not sent yet."""

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Have the application answer; where it does not, to the end, the client gets a 500 or the connection ends."""
        problem, error = "", None
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as raised:
            problem, error = "Exception in ASGI application\n", raised
        else:
            if not (self.response_complete or self.disconnected):
                problem = "ASGI callable returned without completing response."
        if problem:
            self.logger.error(problem, exc_info=error)
            error = None  # its traceback has this frame
            await self._end_early()
        self.on_response = _say_nothing

    async def _end_early(self) -> None:
        """Say so, where nothing was said yet; else what was said ends with the connection."""
        if not self.response_started:
            return await self.send_500_response()
        self._write(b"")
        self.transport.close()

    async def send(self, message: Any) -> None:
        """Take a message of ASGI, once the client reads."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if self.response_complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        if kind != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"Unexpected ASGI message '{kind}'.")
        if self.response_started:
            self._go_on(message.get("body", b""), has_more=message.get("more_body", False))
        else:
            self._start(message["status"], [*self.default_headers, *message.get("headers", ())])

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started, self.waiting_for_100_continue = True, False
        names = b"".join([name for name, _ in headers])
        if HEADER_RE.search(names):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("Invalid HTTP header value.")
        if not names.islower():
            headers = [(name.lower(), value) for name, value in headers]
            names = names.lower()
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % header for header in headers]]
        says_close = _FRAMING.search(names) is not None and self._note_framing(headers)
        if not (self.keep_alive or says_close):
            lines.append(_CLOSE)
        method = self.scope["method"]
        if self.chunked_encoding is None and method != "HEAD" and status not in _WITHOUT_BODY:
            self.chunked_encoding = True
            lines.append(_CHUNKED)
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        if method != "POST":  # answers to others may have no body, or none that is sent
            self._write(b"")

    def _note_framing(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Note how the answer says where it ends; returns whether it says that the connection ends."""
        says_close = False
        for name, value in headers:
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection" and b"close" in [token.lower().strip() for token in value.split(b",")]:
                self.keep_alive, says_close = False, True
        return says_close

    def _go_on(self, body: bytes, *, has_more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = part if has_more else part + b"0\r\n\r\n"
        elif len(body) > self.expected_content_length:
            raise RuntimeError("Response content longer than Content-Length")
        else:
            self.expected_content_length -= len(body)
        self._write(body)
        if has_more:
            return
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        """Send bytes behind the head, if that has not been sent."""
        head, self._head = self._head, b""
        if data := head + data if head else data:
            self.transport.write(data)
