"""Tokens of recorded streams: in frames at once, in blocks from time to time, and whole wherever they are read."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import orjson
import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.store.data_keys import seal
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.stream_scripts import FRAME_SLOTS
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamBounds, StreamRecord, StreamStore
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import Piece, add_piece, decode_block, encode_block
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.owned import OwnedStream, Ownership

FLUSH_S, LEASE_S = 0.05, 0.6
TENANT = "ten_a"


class Gateway:
    """What records streams at one gateway, whose turns the test takes."""

    def __init__(self, redis: Redis, name: str, lease_s: float = LEASE_S) -> None:
        bounds = StreamBounds(lease_s=lease_s, kept_s=60.0, tenant_bytes=1 << 20, tenant_streams=100)
        self.clock = FakeClock()
        self.store = StreamStore(redis, RecordStoreConfig(), bounds, name, lambda tenant, purpose: b"k" * 32)
        self.desk = StreamDesk(self.store, self.clock, FLUSH_S, GatewayMetrics(CollectorRegistry()))
        self.failures: list[str] = []

    async def begin(self, name: str) -> OwnedStream:
        """Make a record."""
        found = await self.store.open(StreamAsk(tenant_id=TENANT, stream_id=name, head=b"head"))
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


def note(stream: OwnedStream, token_id: int) -> None:
    stream.note(ChoiceChunk(0, "", [token_id], [], None, is_first=False))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = open_redis(redis_url)
    yield client
    await client.aclose()


@contextmanager
def counted(stream: OwnedStream) -> Iterator[list[int]]:
    """Counts the writes of a stream."""
    found, write = [], stream.write

    def counting() -> object:
        found.append(1)
        return write()

    stream.write = counting  # type: ignore[method-assign,assignment]
    yield found
    del stream.write


async def test_every_token_is_recorded_with_the_next_turn_and_its_stream_seldom(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two")
    streams = [await one.begin(f"s{number}") for number in range(3)]
    expected: list[list[int]] = [[], [], []]
    with counted(streams[0]) as writes:
        for turn in range(6 * FRAME_SLOTS):
            for number, stream in enumerate(streams[: 1 + turn % 3]):
                for place in range(turn % 4):
                    expected[number].append(70_000 * number + 10 * turn + place)
                    note(stream, expected[number][-1])
            await one.turn()
            assert [tokens_of(await two.look(f"s{number}")) for number in range(3)] == expected
    assert len(writes) <= 1 + 6 * FRAME_SLOTS / (FRAME_SLOTS - 5)


async def test_who_takes_a_stream_over_has_the_tokens_of_its_frames_and_records_them_again(redis: Redis) -> None:
    one, two, three = Gateway(redis, "one"), Gateway(redis, "two"), Gateway(redis, "three")
    stream = await one.begin("s")
    for token_id in range(10):
        note(stream, token_id)
        await one.turn()
    taken = await two.take("s")
    assert tokens_of(taken) == list(range(10))
    num_blocks = len(blocks_of(taken))
    assert num_blocks < 10
    rest = tuple(tokens_of(taken)[num_blocks:])
    begins = Ownership(epoch=2, number=taken.number, block=len(taken.blocks), num_pieces=num_blocks, tail=rest)
    again = two.own("s", begins)
    await two.turn()
    for token_id in range(10, 15):
        note(stream, 900 + token_id)  # the older owner goes on, and is not heard
        note(again, token_id)
        await one.turn()
        await two.turn()
        assert tokens_of(await three.look("s")) == list(range(token_id + 1))
    assert one.failures == ["stream_moved"]
    again.note_whole()
    await two.turn()
    assert blocks_of(await three.look("s")) == list(range(15))


async def test_a_stream_that_is_cancelled_elsewhere_ends_soon_and_keeps_what_came_before(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two")
    stream, other = await one.begin("s"), await one.begin("other")
    for token_id in range(4):
        note(stream, token_id)
        await one.turn()
    assert await two.store.cancel(TENANT, "s") == "open"
    assert tokens_of(await two.look("s")) == [0, 1, 2, 3]
    for _ in range(2):
        note(other, 7)
        await one.turn()
    await one.turn()
    assert one.failures == ["stream_cancelled"]
    assert blocks_of(await two.look("s")) == [0, 1, 2, 3]


async def test_frames_of_gateways_that_are_gone_are_removed(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two", lease_s=60.0)
    for gateway in (one, two):
        stream = await gateway.begin(f"of {id(gateway)}")
        for token_id in range(3):
            note(stream, token_id)
            await gateway.turn()
    key = f"{RecordStoreConfig().prefix}:streams:{TENANT}:frames"
    assert await redis.hexists(key, "one/t")
    await redis.hset(key, "one/t", "1")
    for token_id in range(FRAME_SLOTS):
        note(stream, token_id)
        await two.turn()
    assert {field.split("/")[0] for field in await redis.hkeys(key)} == {"two"}


async def test_a_number_is_of_one_making_of_a_record_alone(redis: Redis) -> None:
    """A record that was dropped and made again, with another answer, has nothing of the first one's frames."""
    one = Gateway(redis, "one", lease_s=60.0)
    stream = await one.begin("s")
    for token_id in range(4):
        note(stream, token_id)
        await one.turn()
    assert await one.store.drop(TENANT, "s")
    again = await one.begin("s")
    note(again, 50)
    await one.turn()
    assert tokens_of(await one.look("s")) == [50]


async def test_who_takes_a_stream_over_and_writes_nothing_loses_no_token_of_it(redis: Redis) -> None:
    one, two, three = Gateway(redis, "one"), Gateway(redis, "two", lease_s=0.1), Gateway(redis, "three")
    stream = await one.begin("s")
    for token_id in range(10):
        note(stream, token_id)
        await one.turn()
    assert tokens_of(await two.take("s")) == list(range(10))  # and its client leaves
    assert tokens_of(await three.look("s")) == list(range(10))
    taken = await three.take("s")
    assert tokens_of(taken) == list(range(10))
    assert len(blocks_of(taken)) < 10


async def test_a_cancelled_stream_keeps_what_its_second_owner_had_not_written(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=0.1), Gateway(redis, "two", lease_s=60.0)
    note(await one.begin("s"), 0)
    await one.turn()
    taken = await two.take("s")
    again = two.own("s", Ownership(epoch=taken.epoch, number=taken.number, block=1, num_pieces=1))
    note(again, 1)
    await one.store.cancel(TENANT, "s")
    await two.turn()
    assert two.failures == ["stream_cancelled"]
    assert blocks_of(await one.look("s")) == [0, 1]


async def test_frames_behind_blocks_of_a_gateway_that_knows_none_are_not_read(redis: Redis) -> None:
    """During a rollout: the older version takes over, records its own tokens in blocks, and gives up."""
    one, two = Gateway(redis, "one"), Gateway(redis, "two")
    stream = await one.begin("s")
    for token_id in range(10):
        note(stream, token_id)
        await one.turn()
    before = await two.look("s")
    num_blocks = len(blocks_of(before))
    pieces = bytearray()
    add_piece(pieces, Piece(0, range(num_blocks, 10)), 1)  # ten tokens, in fewer pieces than its frames count
    key, number = f"{RecordStoreConfig().prefix}:streams:{TENANT}", len(before.blocks)
    sealed = seal(b"k" * 32, encode_block([0], 0, bytes(pieces)), f"{TENANT}/s/{number}".encode())
    meta = orjson.loads(await redis.hget(key, "s"))  # type: ignore[arg-type]
    meta |= {"n": number + 1, "o": "", "e": meta["e"] + 1}
    await redis.hset(key, mapping={"s": orjson.dumps(meta), f"s/{number}": base64.b64encode(sealed)})
    assert blocks_of(await two.look("s")) == list(range(10))
    assert not (await two.look("s")).tail
    assert not (await two.take("s")).tail


async def test_frames_of_a_tenant_without_records_are_not_kept(redis: Redis) -> None:
    """They would have no end."""
    one = Gateway(redis, "one", lease_s=60.0)
    stream = await one.begin("s")
    note(stream, 0)
    await one.turn()
    await one.store.forget(TENANT)
    note(stream, 1)
    await one.turn()
    assert not await redis.exists(f"{RecordStoreConfig().prefix}:streams:{TENANT}:frames")


async def test_a_follower_reads_each_frame_once_and_who_takes_over_all_that_no_block_has(redis: Redis) -> None:
    one, two = Gateway(redis, "one"), Gateway(redis, "two")
    stream, record = await one.begin("s"), StreamRecord(found=Found.NONE)
    for token_id in range(9):
        note(stream, token_id)
        await one.turn()
        ask = StreamAsk(tenant_id=TENANT, stream_id="s", may_take=False, seen=record.seen)
        record = await two.store.open(ask)
        assert list(record.tail.values()) == ([token_id] if token_id else [])
    ask = StreamAsk(tenant_id=TENANT, stream_id="s", seen=record.seen)
    while (taken := await two.store.open(ask)).found is not Found.TAKEN:
        assert not taken.tail
    assert tokens_of(taken) == list(range(9))
    assert min(taken.tail) >= len(blocks_of(taken)) - 1
