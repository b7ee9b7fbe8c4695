"""Tokens of recorded streams: in frames at once, in blocks from time to time, and whole wherever they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import orjson
import pytest
from redis.asyncio import Redis

from stratos.store.redis import open_redis
from stratos.store.sealed.stream_scripts import MOST_TURNS
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.streams.codec import Piece, add_piece, encode_block
from stratos_gateway.streams.owned import OwnedStream, Ownership
from tests.support.worlds.record_world import FRAMES, RECORDS, TENANT, Gateway, blocks_of, note, sealed, tokens_of


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
        for turn in range(2 * MOST_TURNS):
            for number, stream in enumerate(streams[: 1 + turn % 3]):
                for place in range(turn % 4):
                    expected[number].append(70_000 * number + 10 * turn + place)
                    note(stream, expected[number][-1])
            await one.turn()
            if turn % 7 == 0:
                assert [tokens_of(await two.look(f"s{number}")) for number in range(3)] == expected
    assert len(writes) <= 1 + 2 * MOST_TURNS / 60
    kept = await redis.hlen(FRAMES)
    assert MOST_TURNS / 4 < kept < MOST_TURNS, "of all frames those that blocks do not have yet"


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
    assert await redis.hexists(FRAMES, "one/t")
    await redis.hset(FRAMES, mapping={"one/t": "1", "older/5": "of a gateway that an older version took for gone"})
    for token_id in range(64):
        note(stream, token_id)
        await two.turn()
    assert {field.split("/")[0] for field in await redis.hkeys(FRAMES)} == {"two"}


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
    number = len(before.blocks)
    block = sealed(encode_block([0], 0, bytes(pieces)), f"{TENANT}/s/{number}")
    meta = orjson.loads(await redis.hget(RECORDS, "s"))  # type: ignore[arg-type]
    meta |= {"n": number + 1, "o": "", "e": meta["e"] + 1}
    await redis.hset(RECORDS, mapping={"s": orjson.dumps(meta), f"s/{number}": block})
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
    assert not await redis.exists(FRAMES)


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
