"""uvicorn's HTTP protocol with the bounds that it lacks, since any client that can connect may use them up.

    head (request line and headers)   at most ``MAX_HEAD_BYTES``, complete within ``head_timeout_s``, from the
                                      moment of connecting or, on a kept connection, from its first byte
    a whole message                   at most ``max_message_bytes``, with what its framing adds to the body, or what
                                      ``uploads`` has for its path
    what follows an early answer      the rest of a request that was answered before it was read gets
                                      ``head_timeout_s`` as well, then the connection ends

    connections                       at most ``max_connections``; more get 503, more than twice as many are closed
    an answer that is not read        ``write_timeout_s`` after its end, then the connection is dropped
    one that has not ended            twice ``write_timeout_s`` in which its client takes nothing, whatever waits for
                                      that; streams end by themselves after one
    requests without their answers    at most ``MAX_QUEUED`` behind the one that is answered

A request that asks for an upgrade gets an ``Upgrade`` in its scope; where a route takes it, the connection goes on as
what the route makes of it, else it ends with the answer.

While the process leaves, every answer ends its connection.  What cannot be understood is answered in OpenAI's shape
like every other error.  Body and time of a request that is being served belong to ``body``.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson
from prometheus_client import Counter, Gauge
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stratos.common.errors import BadRequest, Overloaded
from stratos.common.ids import new_id
from stratos.common.shed_reason import ShedReason
from stratos_gateway.http.body import DEPARTURE, Departure, OrjsonResponse
from stratos_gateway.http.cycle import AnswerCycle, ChunkedParts, read_target
from stratos_gateway.http.errors import error_body, retry_headers
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import PARTS

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

MAX_HEAD_BYTES = 64 * 1024
"""Other servers take 8 to 64 KiB."""
MAX_QUEUED = 64
"""Requests of a connection that wait for the answers before theirs; one that sends more is ended."""
UPGRADE = "stratos.upgrade"
"""Extension of ASGI: the ``Upgrade`` of a request that asks for one."""
_LAST_S = 0.5
"""Time that an upgraded connection gets for its end when the server stops."""


@dataclass(slots=True, kw_only=True)
class ConnectionsState:
    """State that all connections of a server share."""

    limits: HttpLimits
    num_open: Gauge
    num_refused: Counter
    uploads: Mapping[str, int] = field(default_factory=dict)
    """Most bytes of a message, by paths that take more than others."""
    is_leaving: bool = False
    """Every answer ends its connection."""


async def refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI application of a connection that is one too many."""
    error = Overloaded("the gateway has too many connections open", reason=ShedReason.QUEUE_FULL)
    headers = {**retry_headers(error, Random()), "connection": "close", "x-request-id": new_id("req")}
    await OrjsonResponse(error_body(error), status_code=error.http_status, headers=headers)(scope, receive, send)


class Upgraded(Protocol):
    """A connection that goes on as something else than HTTP."""

    def feed(self, data: bytes) -> None:
        """Bytes have come."""

    def lost(self) -> None:
        """The connection has ended."""

    def leave(self) -> None:
        """The process goes: end once nothing runs."""


U = TypeVar("U", bound=Upgraded)


class Upgrade:
    """The upgrade that one request asks for.

    Args:
        transport: of the connection.
        flow: of the transport.
        hand_over: tells the connection what it has become.
    """

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, hand_over: Callable[[Upgraded], None]) -> None:
        self._transport = transport
        self._flow = flow
        self._hand_over = hand_over

    def switch(self, headers: Sequence[tuple[bytes, bytes]], make: Callable[[asyncio.Transport, FlowControl], U]) -> U:
        """Answer that the protocol changes, and change it.

        Args:
            headers: of the answer.
            make: makes what the connection becomes.
        """
        made = make(self._transport, self._flow)
        lines = [b"HTTP/1.1 101 Switching Protocols", *(b"%b: %b" % header for header in headers), b"", b""]
        self._transport.write(b"\r\n".join(lines))
        self._hand_over(made)
        return made


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        state: its bounds, and what it shares with the others.
        arguments: of uvicorn's protocol.
    """

    def __init__(self, state: ConnectionsState, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._state = state
        self._limits = state.limits
        self._in_head = True
        self._in_message = False
        self._num_bytes = 0
        self._most_bytes = self._limits.max_message_bytes
        self._answered_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._behind: asyncio.TimerHandle | None = None
        self._upgraded: Upgraded | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head's time begins."""
        super().connection_made(transport)
        self._departure = Departure(self.flow.resume_reading)
        self._extensions: dict[str, Any] = {PARTS: ChunkedParts(transport, self.flow), DEPARTURE: self._departure}
        self._state.num_open.set(len(self.connections))
        if len(self.connections) > self._limits.max_connections:
            self._state.num_refused.inc()
            if len(self.connections) > 2 * self._limits.max_connections:
                transport.abort()
                return
            self.app = refuse_connection
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to time."""
        self._stop_behind()
        self._stop_timer()
        super()._unset_keepalive_if_required()
        if self._upgraded is not None:
            self._upgraded.lost()
        super().connection_lost(exc)
        self._departure.note()
        self._state.num_open.set(len(self.connections))

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        super().pause_writing()
        self._watch_behind(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read nearly all."""
        super().resume_writing()
        self._stop_behind()

    def _watch_behind(self, num_unread: int) -> None:
        """Drop the connection unless its client takes some of these bytes in time: a close would wait for ever."""
        self._stop_behind()
        self._behind = self.loop.call_later(2 * self._limits.write_timeout_s, self._look_behind, num_unread)

    def _look_behind(self, num_unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < num_unread:
            self._watch_behind(left)
        else:
            self.transport.abort()

    def _stop_behind(self) -> None:
        if self._behind is not None:
            self._behind.cancel()
            self._behind = None

    def data_received(self, data: bytes) -> None:
        """Count, parse, and refuse what is too much."""
        if self.transport.is_closing():
            return
        if self._upgraded is not None:
            self._upgraded.feed(data)
            return
        self._num_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._num_bytes and self._timer is None:
            self._start_timer()
        if self._num_bytes > (MAX_HEAD_BYTES if self._in_head else self._most_bytes):
            text = f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text, "headers_too_large")

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= MAX_QUEUED:  # uvicorn reads on with each answer, however many wait
            raise OverflowError("too many requests wait on this connection")  # it makes the parser fail
        self._in_message, self.expect_100_continue, self.url, self.headers = True, False, b"", []

    def on_headers_complete(self) -> None:
        """The head is there in time: the request is answered, behind those before it."""
        self._in_head = False
        self._stop_timer()
        parser, before = self.parser, self.cycle
        version = parser.get_http_version()
        self.scope = self._scope_of(version)
        self._most_bytes = self._state.uploads.get(self.scope["path"], self._limits.max_message_bytes)
        self.cycle = cycle = AnswerCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=not self._state.is_leaving and version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if parser.should_upgrade():
            upgrade = Upgrade(self.transport, self.flow, self._become)
            self.scope["extensions"], cycle.keep_alive = self._extensions | {UPGRADE: upgrade}, False
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _scope_of(self, version: str) -> HTTPScope:
        path, raw_path, query = read_target(self.url)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": {},
            "extensions": self._extensions,
        }

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body for the route; more than it takes at once waits in the socket."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request is there; what follows is the next one's head."""
        self._in_head, self._in_message, self._num_bytes = True, False, 0
        self._stop_timer()
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """An answer is out; the rest of its request, if any, does not get for ever. An idle connection has one timer
        from answer to answer, where uvicorn makes one for each."""
        self.server_state.total_requests += 1
        self._answered_s = self.loop.time()
        if self.transport.is_closing():
            return self._drop_unread()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        if self._in_message:
            self._start_timer()

    def _unset_keepalive_if_required(self) -> None:
        """Let it run on."""

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a route takes the upgrade, or the answer says that none does."""

    def _become(self, upgraded: Upgraded) -> None:
        """Go on as something else; uvicorn has no more to do with it."""
        self._upgraded = upgraded
        self.cycle.disconnected = True
        self._stop_timer()
        if self._state.is_leaving:
            upgraded.leave()

    def shutdown(self) -> None:
        """The server stops."""
        if self._upgraded is None:
            super().shutdown()
            return
        self._upgraded.leave()
        self.loop.call_later(_LAST_S, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """End the connection if no further request came for long enough; else look again then, or with an answer."""
        self.timeout_keep_alive_task = None
        if self._num_bytes or self._in_message or not self.cycle.response_complete:
            return  # a head that is on its way has a time of its own
        if (left_s := self._answered_s + self.timeout_keep_alive - self.loop.time()) > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()
            self._drop_unread()

    def send_400_response(self, msg: str) -> None:
        """Answer that uvicorn gives to a malformed request."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request", "invalid_http")

    def end_when_idle(self, min_idle_s: float = 0.0) -> None:
        """End after the answer under way, or where there is none, ``min_idle_s`` after the last one.

        A request that has begun to arrive, and the first one of a connection, are still answered.  A client that sends
        one after the other is about to use its connection: it rather gets one more answer, which ends it.
        """
        if self.cycle is None or self.transport.is_closing():
            return
        if self._upgraded is not None:
            self._upgraded.leave()
            return
        left_s = min_idle_s - (self.loop.time() - self._answered_s)
        if self.cycle.response_complete and left_s > 0:
            self.loop.call_later(left_s, self.end_when_idle)
        elif not (self.cycle.response_complete and (self._in_message or self._has_unread())):
            self.shutdown()

    def _has_unread(self) -> bool:
        """Bytes have arrived that were not read yet."""
        waiting = select.poll()  # select() takes no descriptors above 1023
        waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def _drop_unread(self) -> None:
        """The connection is closing; what its client does not read in time goes with it."""
        self._stop_timer()
        self._timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

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
