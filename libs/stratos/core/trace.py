"""How a request is found in traces and logs: the span to go on from, and the id that its client knows.

Neither decides anything: ids that fence attempts and hand-offs are minted here and never made of these.
"""

from __future__ import annotations

import re
from dataclasses import replace

from stratos.common.changed import record

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_HTTP_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
_SAMPLED = 1


@record(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Travels with a request from process to process."""

    traceparent: str = ""
    """W3C trace context of the parent of what is done next; empty or not sampled means no spans."""
    http_request_id: str = ""
    """The x-request-id of the HTTP request."""

    @property
    def is_sampled(self) -> bool:
        """Spans are wanted."""
        return bool(self.traceparent) and bool(int(self.traceparent[-2:], 16) & _SAMPLED)

    def unsampled(self) -> TraceContext:
        """The same for a request that gets no spans."""
        return replace(self, traceparent=f"{self.traceparent[:-2]}00") if self.is_sampled else self

    def label(self, request_id: str) -> str:
        """Our id of a request for a log line, with the id that the client knows."""
        return f"{request_id} ({self.http_request_id})" if self.http_request_id else request_id


NO_TRACE = TraceContext()
"""Of a request that no client sent, such as a probe."""


def parse_traceparent(text: str) -> str:
    """A traceparent from outside in the form of version 00, "" when it is malformed.

    A later version may append fields; they are dropped. Of the flags "sampled" alone is kept.
    """
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return ""
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return ""
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & _SAMPLED:02x}"


def parse_http_request_id(text: str) -> str:
    """An x-request-id from outside, "" when it is not fit for logs and headers."""
    return text if _HTTP_REQUEST_ID.fullmatch(text) else ""
