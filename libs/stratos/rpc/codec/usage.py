"""What requests took, as messages of a session, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from stratos.api.worker.v1 import decode_pb2
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.records import RequestKey

_TAG = tuple(f.name for f in dataclasses.fields(MeterTag))
_NUMBERS = tuple(f.name for f in dataclasses.fields(UsageCount) if f.name not in ("key", "tenant", "tag"))


def tag_to_pb(tag: MeterTag) -> decode_pb2.MeterTag:
    """What a request is billed by."""
    return decode_pb2.MeterTag(**{name: getattr(tag, name) for name in _TAG})


def tag_from_pb(message: decode_pb2.MeterTag) -> MeterTag:
    """The way back."""
    return MeterTag(**{name: getattr(message, name) for name in _TAG})


def counts_to_pb(counts: Iterable[UsageCount]) -> decode_pb2.UsageCounts:
    """Counts of ended attempts."""
    return decode_pb2.UsageCounts(
        counts=[
            decode_pb2.UsageCount(
                request_id=count.key.request_id,
                attempt=count.key.attempt,
                tenant=count.tenant,
                meter=tag_to_pb(count.tag),
                **{name: getattr(count, name) for name in _NUMBERS},
            )
            for count in counts
        ]
    )


def counts_from_pb(message: decode_pb2.UsageCounts) -> list[UsageCount]:
    """The way back."""
    return [
        UsageCount(
            key=RequestKey(count.request_id, count.attempt),
            tenant=count.tenant,
            tag=tag_from_pb(count.meter),
            **{name: getattr(count, name) for name in _NUMBERS},
        )
        for count in message.counts
    ]


def usage_ack(request_ids: Iterable[str]) -> decode_pb2.SessionRequest:
    """Their counts are in the ledger."""
    return decode_pb2.SessionRequest(usage_ack=decode_pb2.UsageAck(request_ids=request_ids))
