"""Terms of a request <-> message, both ways; a deadline travels as the milliseconds that are left."""

from __future__ import annotations

import math

from stratos.api.common.v1 import common_pb2
from stratos.core.adapter import BASE_MODEL, AdapterRef
from stratos.core.requests.pins import MAX_BREAKPOINTS, NO_PINS, TTL_24H_S, Breakpoint, PinTerms
from stratos.core.requests.terms import FULL_SHARE, RequestTerms, Share
from stratos.rpc.codec.fields import Part


def terms_to_part(terms: RequestTerms, now_s: float) -> Part:
    """Terms as fields of a message that leaves at ``now_s``; an open deadline has at least 1 ms left."""
    adapter = terms.adapter
    return {
        "tenant": terms.tenant,
        "tenant_name": terms.tenant_name,
        "cache_salt": terms.cache_salt,
        "kv_key": terms.kv_key,
        "priority_class": terms.priority_class,
        "adapter": {"digest": adapter.digest, "uri": adapter.uri} if adapter.digest else None,
        "deadline_ms": _left_ms(terms.deadline_s, now_s),
        "end_ms": _left_ms(terms.end_s, now_s),
        "age_ms": max(round((now_s - terms.began_s) * 1000), 0) if terms.arrival_s else 0,  # 0: a record without times
        "pins": _pins_to_pb(terms.pins) if terms.pins.breakpoints else None,
    }


def _pins_to_pb(pins: PinTerms) -> common_pb2.PinTerms:
    marks = [common_pb2.Breakpoint(num_tokens=mark.num_tokens, ttl_s=mark.ttl_s) for mark in pins.breakpoints]
    return common_pb2.PinTerms(breakpoints=marks, device_ratio=pins.device_ratio, host_ratio=pins.host_ratio)


def _pins_from_pb(message: common_pb2.PinTerms) -> PinTerms:
    """Breakpoints up to the bound; seconds and shares within theirs."""
    marks = message.breakpoints[: MAX_BREAKPOINTS + 1]
    return PinTerms(
        breakpoints=tuple(Breakpoint(mark.num_tokens, min(mark.ttl_s, TTL_24H_S)) for mark in marks),
        device_ratio=_share(message.device_ratio),
        host_ratio=_share(message.host_ratio),
    )


def _share(ratio: float) -> float:
    """Share within its bounds; nothing for one that is no number."""
    return min(max(ratio, 0.0), 1.0) if math.isfinite(ratio) else 0.0


def _left_ms(at_s: float | None, now_s: float) -> int | None:
    return None if at_s is None else max(round((at_s - now_s) * 1000), 1)


def terms_from_pb(message: common_pb2.RequestTerms, now_s: float, share: Share = FULL_SHARE) -> RequestTerms:
    """Terms from a message that arrives at ``now_s``; nothing is checked."""
    adapter = message.adapter
    return RequestTerms(
        tenant=message.tenant,
        tenant_name=message.tenant_name,
        cache_salt=message.cache_salt,
        kv_key=message.kv_key,
        priority_class=message.priority_class,
        adapter=AdapterRef(digest=adapter.digest, uri=adapter.uri) if adapter.digest else BASE_MODEL,
        arrival_s=now_s,
        age_s=max(message.age_ms, 0) / 1000,
        deadline_s=now_s + message.deadline_ms / 1000 if message.HasField("deadline_ms") else None,
        end_s=now_s + message.end_ms / 1000 if message.HasField("end_ms") else None,
        share=share,
        pins=_pins_from_pb(message.pins) if message.HasField("pins") else NO_PINS,
    )
