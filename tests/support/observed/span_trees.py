"""Spans of one trace: as a tree of names, and whether they belong together."""

from __future__ import annotations

from typing import Any

from tests.support.servers.otlp_receiver import ReceivedSpan

CLOCK_NS = 20_000_000
"""By so much the clocks of two processes may differ."""


def tree(spans: list[ReceivedSpan], parent_id: str = "") -> dict[str, Any]:
    """Spans by "service name" below a parent; siblings of one name get their numbers."""
    children: dict[str, Any] = {}
    for span in spans:
        if span.parent_id == parent_id:
            name = f"{span.service.removeprefix('stratos-')} {span.name}"
            taken = sum(known == name or known.startswith(f"{name} #") for known in children)
            children[f"{name} #{taken + 1}" if taken else name] = tree(spans, span.span_id)
    return children


def assert_sound(spans: list[ReceivedSpan], parent_id: str = "") -> None:
    """One trace; every parent is there and begins before its children."""
    assert len({span.trace_id for span in spans}) == 1
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span.begin_ns <= span.end_ns, span
        if span.parent_id != parent_id:
            assert by_id[span.parent_id].begin_ns <= span.begin_ns + CLOCK_NS, span
