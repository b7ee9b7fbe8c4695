"""Placement requests and placements <-> messages, both ways."""

from __future__ import annotations

from dataclasses import replace

from stratos.api.router.v1 import router_pb2
from stratos.core.placement import Placement, PlacementRequest
from stratos.core.requests.terms import FULL_SHARE, Share
from stratos.rpc.codec.cache import layout_from_pb, layout_to_pb
from stratos.rpc.codec.fleet import ref_from_pb, ref_to_pb, work_from_pb, work_to_pb
from stratos.rpc.codec.terms import terms_from_pb, terms_to_pb
from stratos.rpc.codec.trace import trace_from_pb, trace_to_pb


def placement_request_to_pb(request: PlacementRequest, now_s: float) -> router_pb2.ScheduleRequest:
    """A request as a message that leaves at ``now_s``."""
    return router_pb2.ScheduleRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        terms=terms_to_pb(request.terms, now_s),
        model_digest=request.model_digest,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        num_choices=request.num_choices,
        work=work_to_pb(request.work),
        excluded_incarnations=sorted(request.excluded_incarnations),
        hung_incarnations=sorted(request.hung_incarnations),
        waited_ms=request.waited_ms,
        num_emitted_tokens=request.num_emitted_tokens,
        is_move=request.is_move,
        required_features=sorted(request.required_features),
        is_suspect=request.is_suspect,
        refusals=request.refusals,
        prompt_digest=request.prompt_digest,
        trace=trace_to_pb(request.trace),
        block_hashes=request.block_names,
        session_key=request.session_key,
        zone=request.zone,
        share=_share_to_pb(request.terms.share),
        overflow_after_ms=request.overflow_after_ms,
    )


def placement_request_from_pb(message: router_pb2.ScheduleRequest, now_s: float) -> PlacementRequest:
    """A request from a message that arrives at ``now_s``.

    Raises:
        BadRequest: it asks for work that this build does not know.
    """
    return PlacementRequest(
        request_id=message.request_id,
        attempt=message.attempt,
        terms=replace(terms_from_pb(message.terms, now_s), share=_share_from_pb(message)),
        model_digest=message.model_digest,
        num_prompt_tokens=message.num_prompt_tokens,
        max_tokens=message.max_tokens,
        num_choices=max(1, message.num_choices),
        work=work_from_pb(message.work),
        excluded_incarnations=frozenset(message.excluded_incarnations),
        hung_incarnations=frozenset(message.hung_incarnations),
        waited_ms=max(0, message.waited_ms),
        num_emitted_tokens=message.num_emitted_tokens,
        is_move=message.is_move,
        required_features=frozenset(message.required_features),
        is_suspect=message.is_suspect,
        refusals=dict(message.refusals),
        prompt_digest=message.prompt_digest,
        trace=trace_from_pb(message.trace),
        block_names=tuple(message.block_hashes),
        session_key=message.session_key,
        zone=message.zone,
        overflow_after_ms=message.overflow_after_ms,
    )


def _share_to_pb(share: Share) -> router_pb2.PlanShare | None:
    if share == FULL_SHARE:
        return None
    return router_pb2.PlanShare(
        weight=share.weight, max_batch_ratio=share.max_batch_ratio, kv_headroom_ratio=share.kv_headroom_ratio
    )


def _share_from_pb(message: router_pb2.ScheduleRequest) -> Share:
    if not message.HasField("share"):
        return FULL_SHARE
    share = message.share
    return Share(
        weight=max(1, share.weight),
        max_batch_ratio=share.max_batch_ratio or 1.0,
        kv_headroom_ratio=share.kv_headroom_ratio,
    )


def placement_to_pb(placement: Placement) -> router_pb2.ScheduleResponse:
    """A placement as a message."""
    return router_pb2.ScheduleResponse(
        decode=None if placement.decode is None else ref_to_pb(placement.decode),
        prefill=[ref_to_pb(ref) for ref in placement.prefill],
        handoff_id=placement.handoff_id,
        queued_ms=placement.queued_ms,
        status_version=placement.status_version,
        cache_layout=None if placement.cache_layout is None else layout_to_pb(placement.cache_layout),
    )


def placement_from_pb(message: router_pb2.ScheduleResponse) -> Placement:
    """A placement from a message.

    Raises:
        BadRequest: the role of a worker is unknown, or a block size is zero.
    """
    return Placement(
        decode=ref_from_pb(message.decode) if message.HasField("decode") else None,
        prefill=tuple(ref_from_pb(ref) for ref in message.prefill),
        handoff_id=message.handoff_id,
        queued_ms=message.queued_ms,
        status_version=message.status_version,
        cache_layout=layout_from_pb(message.cache_layout) if message.HasField("cache_layout") else None,
    )
