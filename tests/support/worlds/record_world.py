"""Gateways that record streams in one Redis, whose turns a test takes."""

from __future__ import annotations

import base64
from collections import Counter

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.store.data_keys import seal
from stratos.store.object_store import ObjectStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.sealed.moved_texts import MovedTexts
from stratos.store.sealed.stream_spill import SpillBounds, StreamSpill
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamBounds, StreamRecord, StreamStore
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import decode_block
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.owned import OwnedStream, Ownership

FLUSH_S, LEASE_S = 0.05, 0.6
TENANT = "ten_a"
KEY = b"k" * 32
RECORDS = f"{RecordStoreConfig().prefix}:streams:{TENANT}"
FRAMES = f"{RECORDS}:frames"


class Gateway:
    """What records streams at one gateway, whose turns the test takes."""

    def __init__(
        self,
        redis: Redis,
        name: str,
        lease_s: float = LEASE_S,
        objects: ObjectStore | None = None,
        tenant_bytes: int = 1 << 20,
        after_s: float = 600.0,
    ) -> None:
        bounds = StreamBounds(
            lease_s=lease_s,
            kept_s=60.0,
            tenant_bytes=tenant_bytes,
            tenant_streams=1000,
            spill_bytes=tenant_bytes // 2 if objects else 0,
            spill_look_s=0.001,
        )
        self.clock = FakeClock()
        self.events: Counter[str] = Counter()
        config, moved = RecordStoreConfig(), MovedTexts(objects, 5.0, self.count)
        self.store = StreamStore(redis, config, bounds, name, lambda tenant, purpose: KEY, moved=moved)
        if objects is not None:
            when = SpillBounds(tenant_bytes=bounds.spill_bytes, after_s=after_s, kept_s=60.0, poll_s=0.001)
            keys, sub_key = self.store.keys, self.store.key
            self.spill = StreamSpill(redis, config, when, keys, sub_key, objects, on_event=self.count)
        self.desk = StreamDesk(self.store, self.clock, FLUSH_S, GatewayMetrics(CollectorRegistry()))
        self.failures: list[str] = []

    def count(self, event: str, number: int) -> None:
        """Count what happened to records."""
        self.events[event] += number

    async def begin(self, name: str, head: bytes = b"head") -> OwnedStream:
        """Make a record."""
        found = await self.store.open(StreamAsk(tenant_id=TENANT, stream_id=name, head=head))
        assert found.found is Found.MADE
        return self.own(name, Ownership(number=found.number))

    def own(self, name: str, begins: Ownership) -> OwnedStream:
        """Record a stream from there on."""
        stream = OwnedStream(TENANT, name, begins, 1, lambda error: self.failures.append(error.code))
        stream.num_cached, stream.ended_unix_s = lambda: [0], lambda: 1.0
        self.desk.own(stream)
        return stream

    async def turn(self) -> None:
        """One turn of the desk, as long as it takes between two."""
        self.clock.advance(FLUSH_S)
        await self.desk.turn()

    async def look(self, name: str) -> StreamRecord:
        """The record as it is."""
        return await self.store.open(StreamAsk(tenant_id=TENANT, stream_id=name, may_take=False))

    async def take(self, name: str) -> StreamRecord:
        """Take the record over, once its owner's lease has ended."""
        ask = StreamAsk(tenant_id=TENANT, stream_id=name)
        while (found := await self.store.open(ask)).found is not Found.TAKEN:
            assert found.found is Found.LIVE
        return found


def blocks_of(record: StreamRecord) -> list[int]:
    """Tokens of the blocks."""
    return [token for block in record.blocks for piece in decode_block(block, 1, 1).pieces for token in piece.ids]


def tokens_of(record: StreamRecord) -> list[int]:
    """Tokens of the blocks, and what frames have besides."""
    found = blocks_of(record)
    while (token := record.tail.get(len(found))) is not None:
        found.append(token)
    return found


def sealed(plain: bytes, place: str) -> bytes:
    """A text as it lies in Redis."""
    return base64.b64encode(seal(KEY, plain, place.encode()))


def note(stream: OwnedStream, *ids: int) -> None:
    """A token, or several that come at once, which blocks alone have."""
    stream.note(ChoiceChunk(0, "", list(ids), [], None, is_first=False))
