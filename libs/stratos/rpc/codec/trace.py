"""Trace context between records and messages; every message that has one uses this."""

from __future__ import annotations

from stratos.api.common.v1 import common_pb2
from stratos.core.trace import NO_TRACE, TraceContext, parse_http_request_id, parse_traceparent
from stratos.rpc.codec.fields import FlatField, Part


def trace_to_part(trace: TraceContext) -> Part | None:
    """A record as fields of its message; ``None``, which leaves it out, when it is empty."""
    if trace is NO_TRACE or trace == NO_TRACE:
        return None
    return {"traceparent": trace.traceparent, "http_request_id": trace.http_request_id}


def trace_from_pb(message: common_pb2.TraceContext) -> TraceContext:
    """A message as record; what is malformed counts as absent, since nothing depends on it."""
    return TraceContext(
        traceparent=parse_traceparent(message.traceparent),
        http_request_id=parse_http_request_id(message.http_request_id),
    )


TRACE = FlatField(encode=trace_to_part, decode=trace_from_pb)
"""The field ``trace`` of a flat record."""
