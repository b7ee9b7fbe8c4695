"""One request and its answer on the way out: its id, its span, its status."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from http import HTTPStatus
from random import Random

from starlette.requests import Request
from starlette.types import Message, Scope, Send

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.common.ids import new_id
from stratos.core.trace import TraceContext, parse_http_request_id, parse_traceparent
from stratos.rpc.tracing import Span, Tracing
from stratos_gateway.http.body import first_headers, headers_named
from stratos_gateway.http.errors import OPENAI_ERRORS, ErrorForm, public_error, public_param, shed_reason
from stratos_gateway.http.sse import EventStream

_SCOPE_KEY = "stratos.exchange"
CLIENT_LEFT = 499
"""Counted as the status of a request whose client left."""


@dataclass(slots=True, kw_only=True)
class RequestFacts:
    """Facts of a request that the access log shows, filled on its way; its texts are not among them."""

    is_inference: bool = False
    """A tenant asked for tokens or vectors."""
    tenant: str = ""
    """Empty until the credential was checked."""
    key_id: str = ""
    plan: str = ""
    priority_class: int = 0
    model: str = ""
    """Name that the client uses, once such a model was found."""
    base_model: str = ""
    """Served name of the base model that answers, a label of metrics."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    ttft_us: int | None = None
    """From the last byte of the request to the first token of any choice."""
    itl_us: int | None = None
    """Mean over the gaps between tokens of one choice."""
    error: str = ""
    """Code of the error that the client got, as a status or within its stream."""
    shed_reason: str = ""
    """Why a full system refused it; empty where it did not."""


async def _send_no_more(message: Message) -> None:
    """Its answer is over."""


class Exchange:
    """Record of one request that middleware and route share, in its ASGI scope.

    Args:
        span: of the whole request; its trace context has the request's id.
        send: of ASGI.
        client: IP address, as the last trusted hop saw it; empty where it is not known.
        started_s: when the request came, monotonic.
    """

    def __init__(self, span: Span, send: Send, client: str, started_s: float = 0.0) -> None:
        self.span = span
        self.client = client
        self.status = 0
        self.client_left = False
        self.is_sent = False
        """The answer has been sent to its end."""
        self.is_our_fault = False
        """It ended with an error of the platform, whatever its status says."""
        self.started_s = started_s
        self.facts = RequestFacts()
        self.prompt_param = ""
        """The route's name for its prompt; empty where it has none."""
        self.error_form: ErrorForm = OPENAI_ERRORS
        self.headers: list[tuple[bytes, bytes]] = []
        """Added to the answer."""
        self.stream: EventStream | None = None
        """Stream of events that was asked for, while its answer is sought and sent."""
        self._send = send

    def note_tenant(self, tenant: str, key_id: str, plan: str, priority_class: int) -> None:
        """Note for whom it is."""
        facts = self.facts
        facts.tenant, facts.key_id, facts.plan, facts.priority_class = tenant, key_id, plan, priority_class

    def name_route(self, method: str, route: str) -> None:
        """Name its span by the route's template, of which there are few."""
        self.span.rename(f"{method} {route}")
        self.span.set(http_method=method, http_route=route)

    def end_span(self, method: str, route: str, status: int) -> None:
        """Name its span, if it has one, and tell it how the request ended."""
        if not self.span.is_recording:
            return
        self.name_route(method, route)
        self.span.set(http_status=status, client_address=self.client)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.span.fail(str(status))

    @property
    def request_id(self) -> str:
        """The client's x-request-id, or ours."""
        return self.span.trace.http_request_id

    def name_param(self, error: StratosError) -> None:
        """Name the client's parameter in an error of a worker or the router, which know fields of messages."""
        if error.is_from_peer:
            error.param = public_param(error.param, self.prompt_param)

    def note_error(self, error: StratosError) -> None:
        """The client got this error, as the answer or within its stream."""
        shown = public_error(error)
        self.facts.error, self.facts.shed_reason = shown.code, shed_reason(error)
        self.is_our_fault = shown.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def counted_status(self) -> int:
        """Status of the answer, as metrics and traces count it."""
        return self.status if self.status and not self.client_left else CLIENT_LEFT

    def close(self) -> None:
        """Let go of the connection: what refers to itself lives on until the collector of cycles comes by."""
        self._send, self.stream = _send_no_more, None

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on; the first one gets the request id, and the span if there is one."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self.headers, (b"x-request-id", self.request_id.encode())]
            if self.error_form.id_header:
                headers.append((self.error_form.id_header, self.request_id.encode()))
            if self.span.is_recording:
                headers.append((b"traceparent", self.span.trace.traceparent.encode()))
            message["headers"] = headers
        elif not message.get("more_body"):
            self.is_sent = True
        return self._send(message)


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Which requests get a trace."""

    ratio: float = 1.0
    """Share of them."""
    takes_clients_word: bool = False
    """One whose client says that it is sampled gets one besides."""


TRACE_ALL = TraceSampling()


class Exchanges:
    """Opens exchanges.

    Args:
        tracing: makes the spans.
        sampling: which requests get a trace.
        random: draws some.
        clock: says when they began.
    """

    def __init__(self, tracing: Tracing, sampling: TraceSampling, random: Random, clock: Clock) -> None:
        self._clock = clock
        self._tracing = tracing
        self._sampling = sampling
        self._random = random

    def open(self, scope: Scope, send: Send) -> Exchange:
        """The exchange of a request; requests that only read, such as probes, have no span of their own."""
        given = first_headers(scope)
        trace = TraceContext(
            traceparent=_traceparent(scope) if b"traceparent" in given else "",
            http_request_id=_request_id(scope) if b"x-request-id" in given else new_id("req"),
        )
        is_post = scope["method"] == "POST"
        span = self._tracing.start("POST", trace, is_chosen=self._is_chosen(trace)) if is_post else Span(trace)
        exchange = scope[_SCOPE_KEY] = Exchange(span, send, (scope.get("client") or ("",))[0], self._clock.now())
        return exchange

    def _is_chosen(self, trace: TraceContext) -> bool:
        if self._sampling.takes_clients_word and trace.is_sampled:
            return True
        return self._sampling.ratio >= 1.0 or self._random.random() < self._sampling.ratio


def exchange_of(request: Request) -> Exchange:
    """The exchange that a request belongs to."""
    return exchange_in(request.scope)


def exchange_in(scope: Scope) -> Exchange:
    """The exchange that an ASGI scope belongs to."""
    exchange: Exchange = scope[_SCOPE_KEY]
    return exchange


def _traceparent(scope: Scope) -> str:
    """The client's; several count as none."""
    values = headers_named(scope, b"traceparent")
    return parse_traceparent(values[0]) if len(values) == 1 else ""


def _request_id(scope: Scope) -> str:
    """The client's first x-request-id that is fit for logs, else a new one."""
    return next(filter(None, map(parse_http_request_id, headers_named(scope, b"x-request-id"))), "") or new_id("req")
