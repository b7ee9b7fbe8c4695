"""Bounds of connections and of requests that are not about a request's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from stratos.core.requests.limits import MAX_BODY_BYTES

FRAMING_ROOM = 8
"""A message may be this many times the largest body: a body in tiny chunks, and one that is thrown away with a 413."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of a connection and of a body."""

    max_body_bytes: Annotated[int, Ge(1)] = MAX_BODY_BYTES
    """Largest request body."""
    lenient: bool = False
    """Fields of a body that are not known are ignored, and named in `x-stratos-ignored`, instead of refused."""
    head_timeout_s: Annotated[float, Gt(0)] = 10.0
    """Longest time a client may take to send the request line and headers."""
    body_timeout_s: Annotated[float, Gt(0)] = 10.0
    """Longest time a client may take to send its body."""
    write_timeout_s: Annotated[float, Gt(0)] = 30.0
    """An answer whose client takes nothing for this long is cancelled; so is an ended connection with unread bytes."""
    sse_keepalive_s: Annotated[float, Ge(0)] = 15.0
    """A stream that has sent nothing for this long sends a comment, and before its first token status 200 and headers:
    proxies end connections that are silent. From then on an error is the stream's last event. 0 sends none."""
    keep_alive_s: Annotated[int, Ge(1)] = 75
    """How long a connection without a request is kept; longer than load balancers keep theirs (60 s), so that the one
    that ends it is never the one that just forwarded a request into it."""
    max_connections: Annotated[int, Ge(1)] = 8192
    """More connections than this are answered with 503 and closed, more than twice as many are closed at once."""

    max_deadline_s: Annotated[float, Gt(0)] = 60.0
    """Longest time from a request's arrival to its first token; `x-stratos-deadline-ms` asks for less. A request that
    cannot begin in time ends as 503 queue_timeout, wherever it waits."""
    max_answer_s: Annotated[float, Gt(0)] = 3600.0
    """Longest time from a request's arrival to the end of its answer; `x-stratos-deadline-ms` asks for less. What is
    not complete then ends as 503 deadline_exceeded, a stream with that error as its last event."""

    @property
    def max_message_bytes(self) -> int:
        """Largest HTTP message, head and framing of the body included."""
        return FRAMING_ROOM * self.max_body_bytes
