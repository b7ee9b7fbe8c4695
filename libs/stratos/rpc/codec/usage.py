"""Usage counts of attempts, as messages of a session."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.api.worker.v1 import decode_pb2
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.pins import CacheWrites
from stratos.core.requests.records import RequestKey
from stratos.rpc.codec.fields import Part, nested
from stratos.rpc.codec.flat import FlatCodec

METER_TAG = FlatCodec(MeterTag, decode_pb2.MeterTag)
CACHE_WRITES = FlatCodec(CacheWrites, decode_pb2.CacheWrites)
_COUNT = FlatCodec(
    UsageCount,
    decode_pb2.UsageCount,
    fields={"tag": nested(METER_TAG, "meter"), "writes": nested(CACHE_WRITES)},
    by_hand={"key", "request_id", "attempt"},
)


def counts_to_pb(counts: Iterable[UsageCount]) -> decode_pb2.UsageCounts:
    """Counts of ended attempts as a message."""
    messages = [_COUNT.to_pb(one, request_id=one.key.request_id, attempt=one.key.attempt) for one in counts]
    return decode_pb2.UsageCounts(counts=messages)


def counts_from_pb(message: decode_pb2.UsageCounts) -> list[UsageCount]:
    """Counts of ended attempts from a message."""
    return [_COUNT.from_pb(one, key=RequestKey(one.request_id, one.attempt)) for one in message.counts]


def usage_ack(request_ids: Iterable[str]) -> Part:
    """Acknowledges counts that are in the ledger: fields of a ``SessionRequest``."""
    return {"usage_ack": {"request_ids": request_ids}}
