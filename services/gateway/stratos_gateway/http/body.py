"""Bodies: JSON read within its limits, JSON written; and the moment when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, closing
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stratos.common.errors import BadRequest, BodyTimeout, RequestTooLarge, UnsupportedEncoding
from stratos.core.requests.limits import MAX_BODY_BYTES
from stratos_gateway.access.patience import begin, rest, within
from stratos_gateway.access.task_end import TaskEnd

DEPARTURE = "stratos.departure"
"""Extension of ASGI: the ``Departure`` of the connection."""
_FIRST, _JSON = "stratos.first_headers", b"application/json"
_DISCARD_TIMEOUT_S = 1.0
_INLINE_BYTES = 32 * 1024
"""Larger bodies are parsed in a thread."""
T = TypeVar("T")
_MAX_DEPTH = 254
"""Levels that the encoder writes."""
_BYTES_PER_WEIGHT = 6
"""Bytes of a token id of five digits and its comma: the weight that a body may have grows with its largest size."""


UNKNOWN: ContextVar[list[str] | None] = ContextVar("fields that are not known", default=None)
"""Where they are listed; ``None`` refuses them."""


class Leniently(AbstractContextManager[list[str]]):
    """Reads bodies within the block; where it is lenient, fields that are not known are listed instead of refused."""

    def __init__(self, *, is_lenient: bool) -> None:
        self._is_lenient = is_lenient

    def __enter__(self) -> list[str]:
        """The list."""
        unknown: list[str] = []
        self._token = UNKNOWN.set(unknown if self._is_lenient else None)
        return unknown

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read as before."""
        UNKNOWN.reset(self._token)


async def read_json(request: Request, *, max_bytes: int, timeout_s: float) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        UnsupportedEncoding: it is compressed; a small body could unfold to any size.
        RequestTooLarge: over ``max_bytes``, announced or not.
        BodyTimeout: it is too slow.
        BadRequest: another content type, not JSON, not an object, or of too many values.
        ClientDisconnect: the client left in the middle.
    """
    _check_kind(request)
    try:
        body = await within(_read(request, max_bytes), timeout_s)
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from error
    return await parsed(body, partial(parse_object, max_bytes=max_bytes))


def first_headers(scope: Scope) -> Mapping[bytes, bytes]:
    """Headers of a request by their names, the first of each; Starlette's look-up goes through all of them for each."""
    found: Mapping[bytes, bytes] | None = scope.get(_FIRST)
    if found is None:
        found = scope[_FIRST] = dict(reversed(scope["headers"]))
    return found


def headers_named(scope: Scope, name: bytes) -> list[str]:
    """All values of a header, as they came."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _check_kind(request: Request) -> None:
    given = first_headers(request.scope)
    if given.get(b"content-type") == _JSON and b"content-encoding" not in given:
        return
    encoding = _header(request, b"content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedEncoding(f"the content encoding {encoding[:40]!r} is not supported; send the body as it is")
    content_type = _header(request, b"content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise BadRequest("the content type must be application/json", code="unsupported_content_type")


def whole_json(request: Request, max_bytes: int) -> dict[str, Any] | None:
    """``read_json`` of a short body that uvicorn has whole, as nearly always: nothing is waited for. ``None`` for any
    other, of which nothing is taken."""
    cycle = getattr(request.receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.more_body or cycle.disconnected or cycle.response_complete:
        return None
    if len(cycle.body) > min(max_bytes, _INLINE_BYTES):
        return None
    _check_kind(request)
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return parse_object(body, max_bytes)


async def waited_in(enter: Callable[[], AbstractContextManager[None]], work: Coroutine[Any, Any, T]) -> T:
    """Do some work, which is waited for within a context; one that need not be waited for is not in it."""
    is_done, found = begin(work)
    if not is_done:
        with closing(work), enter():
            found = await rest(work, found)
    return found  # type: ignore[no-any-return]


async def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """Call ``parse`` on a body, in a thread where that takes long."""
    return parse(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse, body)


def parse_object(body: bytes, max_bytes: int) -> dict[str, Any]:
    """A body as a JSON object; raises ``BadRequest``."""
    if len(body) > _INLINE_BYTES:
        _check_weight(body, max_bytes)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from error
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    return parsed


def written(body: dict[str, Any], option: int | None = None) -> bytes:
    """A body that was read, or what is kept of it, as JSON again; the encoder writes fewer levels than it reads.

    Raises:
        BadRequest: it has more.
    """
    try:
        return orjson.dumps(body, option=option)
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"the body is nested deeper than {_MAX_DEPTH} levels", code="invalid_json") from error


def _check_weight(body: bytes, max_bytes: int) -> None:
    """Refuse a body of very many small values: the parser keeps the interpreter's lock until it has made them all.

    A token id weighs 1, a text 1 more, a container or a field about five times that, as measured. The most token ids
    that any route takes, 300,000, fit; marks within texts count as well.
    """
    weights = {b",": 1.0, b'"': 0.5, b":": 4.0, b"[": 5.0, b"{": 5.0}
    if (
        sum(weight * body.count(mark) for mark, weight in weights.items())
        > max(max_bytes, MAX_BODY_BYTES) // _BYTES_PER_WEIGHT
    ):
        raise BadRequest("the body has too many values; send fewer or larger ones", code="too_many_values")


def _header(request: Request, name: bytes, default: str = "") -> str:
    value = first_headers(request.scope).get(name)
    return default if value is None else str(value, "latin-1")


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = _header(request, b"content-length")
    too_large = announced.isdigit() and int(announced) > max_bytes
    parts: list[bytes] = []
    size = 0
    has_more = True
    while has_more and not too_large:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        too_large, has_more = size > max_bytes, message.get("more_body", False)
    if too_large:
        if has_more:
            await _discard(request, 4 * max_bytes)
        raise RequestTooLarge(f"the body is larger than {max_bytes} bytes")
    return b"".join(parts)


async def _discard(request: Request, max_bytes: int) -> None:
    """Let a client that is still sending come to the point where it reads our answer."""
    try:
        async with asyncio.timeout(_DISCARD_TIMEOUT_S):
            size = 0
            while size < max_bytes:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                size += len(message.get("body", b""))
    except TimeoutError:
        return


class Departure:
    """The end of a connection, told to what works for its client; a task that waits for it costs each request more.

    Args:
        resume: reads on from the connection, which is not read further behind much of a body that came at once: the
            end would not be seen.
    """

    def __init__(self, resume: Callable[[], None] = lambda: None) -> None:
        self._resume = resume
        self._is_gone = False
        self._told: list[Callable[[], None]] = []
        """Several where the work for one request outlasts its answer, and the next one has come."""

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once the client leaves, in the next turn of the event loop if it has."""
        self._told.append(tell)
        if self._is_gone:
            asyncio.get_running_loop().call_soon(self._tell_late, tell)
        else:
            self._resume()

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Call it no more."""
        self._told.remove(tell)

    def note(self) -> None:
        """The client has left."""
        self._is_gone = True
        for tell in list(self._told):
            tell()

    def _tell_late(self, tell: Callable[[], None]) -> None:
        if tell in self._told:
            tell()


async def until_disconnect(
    scope: Scope,
    receive: Receive,
    work: Awaitable[None],
    is_sent: Callable[[], bool] = lambda: False,
    stay_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Run ``work``; cancel it as soon as the client leaves.

    Args:
        scope: of ASGI; with a ``Departure`` where the server has that extension.
        receive: of ASGI.
        work: answers.
        is_sent: the answer has been sent to its end: what is left of the work goes on without the client.
        stay_s: seconds that it goes on without its client, asked when that one leaves.

    Raises:
        ClientDisconnect: the client left first.
    """
    departure: Departure | None = scope.get("extensions", {}).get(DEPARTURE)
    with _Leaving(is_sent, stay_s) as leaving:
        if departure is not None:
            departure.watch(leaving.note)
            unwatch: Callable[[], object] = partial(departure.unwatch, leaving.note)
        else:
            unwatch = asyncio.create_task(_disconnected(receive, leaving.note)).cancel
        try:
            await work
        finally:
            unwatch()
            leaving.forget()


class _Leaving(TaskEnd):
    """Ends the current task once the client has left; arguments are those of ``until_disconnect``."""

    def __init__(self, is_sent: Callable[[], bool], stay_s: Callable[[], float]) -> None:
        super().__init__()
        self._is_sent, self._stay_s = is_sent, stay_s
        self._timer: asyncio.TimerHandle | None = None

    def note(self) -> None:
        """The client has left."""
        if left_s := self._stay_s():
            self._timer = asyncio.get_running_loop().call_later(left_s, self._leave)
        else:
            self._leave()

    def forget(self) -> None:
        """The work is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self) -> None:
        if not self._is_sent():
            self(ClientDisconnect())


async def _disconnected(receive: Receive, note: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    note()


class OrjsonResponse(JSONResponse):
    """A JSON answer."""

    def render(self, content: Any) -> bytes:
        """Content as bytes."""
        return orjson.dumps(content)
