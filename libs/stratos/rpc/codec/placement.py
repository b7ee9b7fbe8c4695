"""Placement requests, placements and reports of attempts <-> messages."""

from __future__ import annotations

from stratos.api.router.v1 import router_pb2
from stratos.core.placement import AttemptReport, Outcome, Placement, PlacementRequest
from stratos.core.requests.terms import FULL_SHARE, Share
from stratos.rpc.codec.cache import LAYOUT
from stratos.rpc.codec.fields import SET, EnumCodec, FlatField, Part, each, optional, renamed
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.codec.fleet import REF, WORK
from stratos.rpc.codec.terms import terms_from_pb, terms_to_part
from stratos.rpc.codec.trace import TRACE

OUTCOME = EnumCodec(
    {
        Outcome.FINISHED: router_pb2.OUTCOME_FINISHED,
        Outcome.CANCELLED: router_pb2.OUTCOME_CANCELLED,
        Outcome.FAILED: router_pb2.OUTCOME_FAILED,
        Outcome.SETTLED: router_pb2.OUTCOME_SETTLED,
    },
    name="outcome",
    param="outcome",
)
ATTEMPT_REPORT = FlatCodec(AttemptReport, router_pb2.AttemptReport, fields={"outcome": OUTCOME.field})
PLACEMENT = FlatCodec(
    Placement,
    router_pb2.ScheduleResponse,
    fields={"decode": optional(REF), "prefill": each(REF), "cache_layout": optional(LAYOUT)},
    by_hand={"router_address"},
)
_REQUEST = FlatCodec(
    PlacementRequest,
    router_pb2.ScheduleRequest,
    fields={
        "work": WORK.field,
        "num_choices": FlatField(decode=lambda number: max(1, number)),
        "waited_ms": FlatField(decode=lambda number: max(0, number)),
        "excluded_incarnations": SET,
        "hung_incarnations": SET,
        "required_features": SET,
        "max_output_tokens_total": renamed("max_tokens"),
        "trace": TRACE,
    },
    by_hand={"terms", "share"},
)
_SHARE = FlatCodec(
    Share,
    router_pb2.PlanShare,
    fields={
        "weight": FlatField(decode=lambda number: max(1, number)),
        "max_batch_ratio": FlatField(decode=lambda ratio: ratio or 1.0),
        "pools": SET,
    },
)


def placement_request_to_part(request: PlacementRequest, now_s: float) -> Part:
    """A request as fields of its message, which leaves at ``now_s``; a plan without bounds is left out."""
    share = request.terms.share
    return _REQUEST.to_part(
        request,
        terms=terms_to_part(request.terms, now_s),
        share=None if share is FULL_SHARE or share == FULL_SHARE else _SHARE.to_part(share),
    )


def placement_request_from_pb(message: router_pb2.ScheduleRequest, now_s: float) -> PlacementRequest:
    """A request from a message that arrives at ``now_s``.

    Raises:
        BadRequest: it asks for work that this build does not know.
    """
    share = _SHARE.from_pb(message.share) if message.HasField("share") else FULL_SHARE
    return _REQUEST.from_pb(message, terms=terms_from_pb(message.terms, now_s, share))
