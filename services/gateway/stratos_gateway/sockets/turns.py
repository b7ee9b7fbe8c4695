"""One response of a socket: its message as a POST of the same process, the events of that answer as messages.

message   {"type": "response.create", ...the fields of a body}
answer    every event as it is in a stream; a refusal is {"type": "error", "status", "error", "headers"}, and the first
          event has "headers", too, where fields of the message mean nothing here
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus

import orjson
from starlette.types import ASGIApp, Message, Scope

from stratos.common.errors import BadRequest, StratosError
from stratos_gateway.answering.request import IGNORED_HEADER, ignored_names
from stratos_gateway.http.body import parse_object, parsed, written
from stratos_gateway.http.errors import error_body, public_error
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.responses.local import LOCAL, LocalResponse
from stratos_gateway.sockets.connection import SocketConnection
from stratos_gateway.sockets.frames import INTERNAL_ERROR

PATH = "/v1/responses"
CREATE = "response.create"
_OWN_HEADERS = frozenset(
    {b"connection", b"upgrade", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"}
    | {b"expect", b"host", b"x-request-id", b"idempotency-key", b"last-event-id"}
)
"""Headers of the handshake that are none of its requests."""
_LAST = tuple(f"event: response.{end}".encode() for end in ("completed", "incomplete", "failed"))
_TOLD_HEADERS = (b"retry-after", b"retry-after-ms", b"x-should-retry", b"x-request-id", b"x-stratos-shed-reason")


def error_event(error: StratosError) -> bytes:
    """An error as an event."""
    return orjson.dumps({"type": "error", "status": public_error(error).http_status, **error_body(error)})


async def body_of(text: str, max_bytes: int) -> bytes:
    """The body that a message asks for.

    Raises:
        BadRequest: it asks for something else, or is no body by its values.
    """
    return await parsed(text.encode(), partial(_body_of, max_bytes=max_bytes))


def _body_of(message: bytes, max_bytes: int) -> bytes:
    event = parse_object(message, max_bytes)
    if event.pop("type", None) != CREATE:
        raise BadRequest(f"a message must be an object of the type {CREATE}", param="type")
    for name, neutral in (("stream", True), ("background", False)):
        if event.pop(name, neutral) not in (neutral, None):
            text = f"{name} cannot be {str(not neutral).lower()} on a socket"
            raise BadRequest(text, param=name, code="unsupported_parameter")
    return written({**event, "stream": True})


class SocketTurn:
    """One response.

    Args:
        app: answers the POST.
        handshake: scope of the request that opened the socket.
        request_id: of the POST.
        connection: where the events go.
        local: what the socket remembers.
    """

    def __init__(
        self, app: ASGIApp, handshake: Scope, request_id: str, connection: SocketConnection, local: LocalResponse
    ) -> None:
        self._app = app
        self._handshake = handshake
        self._request_id = request_id
        self._connection = connection
        self._local = local
        self._left = asyncio.Event()
        self._body: bytes | None = None
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self._ignored = ""
        """Fields that mean nothing here, until the client is told of them."""
        self._refusal = b""
        self.is_ended = False
        """The client has the last event."""

    async def run(self, body: bytes) -> None:
        """Answer; the answer of another turn must not run. Without a last event the connection is closed."""
        self._body = body
        token = LOCAL.set(self._local)
        try:
            await self._app(self._scope(), self._receive, self._send)
        finally:
            LOCAL.reset(token)
            if not (self.is_ended or self._connection.is_gone):
                self._connection.close(INTERNAL_ERROR, "the response broke off")

    def leave(self) -> None:
        """The client has left."""
        self._left.set()

    def _scope(self) -> Scope:
        given = self._handshake
        kept = [
            (name, value)
            for name, value in given["headers"]
            if name not in _OWN_HEADERS and not name.startswith(b"sec-websocket-")
        ]
        headers = [*kept, (b"content-type", b"application/json"), (b"x-request-id", self._request_id.encode())]
        names = ("asgi", "http_version", "server", "client", "scheme", "root_path", "state")
        shared = {name: given[name] for name in names if name in given}
        line = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b""}
        return {**shared, **line, "headers": headers}

    async def _receive(self) -> Message:
        """The body, and then the moment when the client leaves."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            self._ignored = ignored_names(message["headers"])
        elif self._status != HTTPStatus.OK:
            self._refusal += message.get("body", b"")
            if not message.get("more_body"):
                self.is_ended = True
                await self._connection.send(self._refused())
        else:
            self.is_ended = self.is_ended or not message.get("more_body")
            await self._pass_on(message.get("body", b""))

    async def _pass_on(self, events: bytes) -> None:
        """Events of a write, which are whole."""
        for event in events.split(b"\n\n"):
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    await self._connection.send(self._with_ignored(line.removeprefix(b"data: ")))
                elif line.startswith(_LAST):
                    self.is_ended = True
                elif line.startswith(b":"):
                    self._connection.ping()
        if self._connection.is_gone:
            raise SlowClient

    def _with_ignored(self, event: bytes) -> bytes:
        """An event, the first one with the names of ignored fields."""
        if not self._ignored:
            return event
        told, self._ignored = {IGNORED_HEADER.decode(): self._ignored}, ""
        return orjson.dumps({**orjson.loads(event), "headers": told})

    def _refused(self) -> bytes:
        told = {name.decode(): self._headers[name].decode() for name in _TOLD_HEADERS if name in self._headers}
        if self._ignored:
            told[IGNORED_HEADER.decode()] = self._ignored
        shown = orjson.loads(self._refusal) if self._refusal else {}
        return orjson.dumps({"type": "error", "status": self._status, **shown, "headers": told})
