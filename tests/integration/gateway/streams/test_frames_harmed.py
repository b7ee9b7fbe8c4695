"""Frames that are lost, harmed or exchanged, of other versions, and of gateways that are lost or come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import orjson
import pytest
from redis.asyncio import Redis

from stratos.store.redis import open_redis
from stratos.store.sealed.stream_frames import opened_text
from stratos.store.sealed.stream_store import Found, StreamAsk, WriteOutcome
from stratos_gateway.streams.owned import OwnedStream
from tests.support.worlds.record_world import FRAMES, RECORDS, TENANT, Gateway, blocks_of, note, sealed, tokens_of


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = open_redis(redis_url)
    yield client
    await client.aclose()


async def ten_tokens(gateway: Gateway) -> OwnedStream:
    """A stream whose first token is in a block, and of the other nine each in the frame of its turn, 2 to 10."""
    stream = await gateway.begin("s")
    for token_id in range(10):
        note(stream, token_id)
        await gateway.turn()
    return stream


async def swap(redis: Redis) -> None:
    five, six = await redis.hmget(FRAMES, ["one/5", "one/6"])
    await redis.hset(FRAMES, mapping={"one/5": six, "one/6": five})


async def replay(redis: Redis) -> None:
    await redis.hset(FRAMES, "one/5", await redis.hget(FRAMES, "one/4"))  # type: ignore[arg-type]


async def lose(redis: Redis) -> None:
    await redis.hdel(FRAMES, "one/5")


async def tear(redis: Redis) -> None:
    await redis.hset(FRAMES, "one/5", (await redis.hget(FRAMES, "one/5"))[:-9])  # type: ignore[index]


async def exchange_tenants(redis: Redis) -> None:
    await redis.hset(FRAMES, "one/5", sealed(bytes(12), "ten_b/frames/one/5"))


@pytest.mark.parametrize("harm", [swap, replay, lose, tear, exchange_tenants])
async def test_a_frame_that_is_not_the_one_of_its_turn_ends_what_is_gone_on_from(
    redis: Redis, harm: Callable[[Redis], Awaitable[None]]
) -> None:
    """And whoever reads it never takes its tokens for others."""
    one, two = Gateway(redis, "one"), Gateway(redis, "two")
    await ten_tokens(one)
    await harm(redis)
    assert tokens_of(await two.take("s")) == [0, 1, 2, 3]


async def test_an_older_block_in_the_place_of_a_newer_one_leaves_a_gap_that_nothing_bridges(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two")
    stream = await one.begin("s")
    note(stream, 0)
    await one.turn()
    older = await redis.hget(RECORDS, "s/0")
    for token_id in range(1, 180):
        note(stream, token_id)
        await one.turn()
    assert len(blocks_of(await two.look("s"))) > 100
    await redis.hset(RECORDS, "s/0", older)  # type: ignore[arg-type]
    assert tokens_of(await two.look("s")) == [0]


async def test_a_lease_that_its_name_renews_is_not_taken_and_one_of_an_older_epoch_is_not_renewed(
    redis: Redis,
) -> None:
    one, two = Gateway(redis, "one", lease_s=1.0), Gateway(redis, "two", lease_s=60.0)
    await ten_tokens(one)
    before = orjson.loads(await redis.hget(RECORDS, "s"))  # type: ignore[arg-type]
    one.clock.advance(0.5)
    await one.turn()
    after = orjson.loads(await redis.hget(RECORDS, "s"))  # type: ignore[arg-type]
    assert after.pop("l") > before.pop("l")
    assert after == before
    assert (await two.take("s")).epoch == 2
    taken = orjson.loads(await redis.hget(RECORDS, "s"))  # type: ignore[arg-type]
    one.clock.advance(0.5)
    await one.turn()
    assert orjson.loads(await redis.hget(RECORDS, "s")) == taken  # type: ignore[arg-type]
    await one.turn()
    assert one.failures == ["stream_moved"]


async def test_frames_of_the_version_before_are_read_in_their_few_places(redis: Redis) -> None:
    """During a rollout: its gateway is lost, and one of this version goes on."""
    one, two = Gateway(redis, "one"), Gateway(redis, "two")
    await ten_tokens(one)
    meta = orjson.loads(await redis.hget(RECORDS, "s"))  # type: ignore[arg-type]
    del meta["wm"]
    await redis.hset(RECORDS, "s", orjson.dumps(meta))
    meta["wf"] += 40  # its turns were 42 to 50, as the places of frames were used before
    frames = {f"one/{turn}": await redis.hget(FRAMES, f"one/{turn}") for turn in range(2, 11)}
    await redis.hdel(FRAMES, *frames)
    for turn in range(2, 11):
        entries = opened_text(b"k" * 32, frames[f"one/{turn}"] or "", f"{TENANT}/frames/one/{turn}")
        slot = f"one/{(40 + turn) % 16}"
        await redis.hset(FRAMES, mapping={slot: sealed(entries, f"{TENANT}/frames/{slot}"), "one/n": 40 + turn})
    await redis.hset(RECORDS, "s", orjson.dumps(meta))
    assert tokens_of(await two.take("s")) == list(range(10))


async def test_streams_of_a_lost_gateway_that_are_taken_over_together_read_its_frames_once(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Gateway(redis, "one"), Gateway(redis, "two")
    streams = [await one.begin(f"s{number}") for number in range(8)]
    for token_id in range(10):
        for stream in streams:
            note(stream, token_id)
        await one.turn()
    read: list[int] = []
    hmget = redis.hmget

    async def counting(key: str, fields: list[str]) -> list[str | None]:
        read.append(len(fields))
        return await hmget(key, fields)

    monkeypatch.setattr(redis, "hmget", counting)
    taken = await asyncio.gather(*(two.take(f"s{number}") for number in range(8)))
    assert [tokens_of(record) for record in taken] == [list(range(10))] * 8
    assert sum(read) <= 10


async def test_frames_of_a_tenant_go_with_its_last_stream_but_not_while_another_gateway_may_need_them(
    redis: Redis,
) -> None:
    one, two = Gateway(redis, "one", lease_s=0.1), Gateway(redis, "two")
    stream = await ten_tokens(one)
    stream.note_whole()
    for _ in range(2):
        await one.turn()
    assert not [field for field in await redis.hkeys(FRAMES) if field[-1].isdigit()]
    other = await one.begin("other")
    for token_id in range(3):
        note(other, token_id)
        await one.turn()
    assert tokens_of(await two.take("other")) == [0, 1, 2]
    for _ in range(3):
        note(other, 9)
        await one.turn()
    assert one.failures == ["stream_moved"]
    assert tokens_of(await two.look("other"))[:3] == [0, 1, 2]


async def test_a_call_that_is_run_after_a_newer_one_takes_nothing_back(redis: Redis) -> None:
    """Its connection was cut before Redis had read it, and a newer one was quicker."""
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two")
    stream, expected = await one.begin("s"), list(range(70_000, 70_800))
    note(stream, *expected[:10])
    late = stream.write()
    for begin, end in pairwise((10, 20, 400, 420, 800)):  # 400 and 800 are ends of blocks
        note(stream, *expected[begin:end])
        await one.turn()
        assert await one.store.write([late]) == ([WriteOutcome.OK], [])
        assert blocks_of(await two.look("s")) == expected[:end]
    assert len((await two.look("s")).blocks) == 2


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_stream_of_which_redis_has_lost_a_block_goes_on_from_what_is_left(
    redis: Redis, *, is_whole: bool
) -> None:
    """As after a restart that takes the last second with it: a newer block would follow a gap."""
    one, two = Gateway(redis, "one", lease_s=60.0), Gateway(redis, "two")
    stream = await one.begin("s")
    note(stream, 1)
    await one.turn()
    left = await redis.hgetall(RECORDS)
    note(stream, *range(70_000, 70_400))
    await one.turn()
    await redis.hset(RECORDS, mapping=left)
    if is_whole:
        stream.note_whole()
    else:
        note(stream, 2, 3)
    await one.turn()
    taken = await two.store.open(StreamAsk(tenant_id=TENANT, stream_id="s"))
    assert (taken.found, blocks_of(taken)) == (Found.TAKEN, [1])
    assert one.failures == [], "its client gets the rest"


async def test_what_another_gateway_has_taken_over_its_older_owner_does_not_remove(redis: Redis) -> None:
    one, two = Gateway(redis, "one", lease_s=0.1), Gateway(redis, "two")
    stream = await one.begin("s")
    taken = await two.take("s")
    assert not await one.store.drop(TENANT, "s", stream.epoch)
    assert not await one.store.drop(TENANT, "s", taken.epoch)
    assert await two.store.drop(TENANT, "s", taken.epoch)


async def test_who_follows_a_stream_does_not_read_its_head_with_each_look(redis: Redis) -> None:
    one = Gateway(redis, "one", lease_s=60.0)
    await one.begin("s")
    for is_wanted, head in ((True, b"head"), (False, b"")):
        ask = StreamAsk(tenant_id=TENANT, stream_id="s", may_take=False, wants_head=is_wanted)
        assert (await one.store.open(ask)).head == head


async def test_who_writes_to_a_record_that_went_does_not_write_to_the_one_that_was_made_again(redis: Redis) -> None:
    """Both have one owner, and its first epoch."""
    one = Gateway(redis, "one", lease_s=60.0)
    older = await one.begin("s")
    note(older, 1, 2)
    await one.turn()
    assert await one.store.drop(TENANT, "s")
    newer = await one.begin("s")
    note(older, 3, 4)
    note(newer, 9, 9)
    await one.turn()
    assert blocks_of(await one.look("s")) == [9, 9]
    assert one.failures == ["stream_moved"]
