"""Records that are more than their room in Redis lie in an object store, and are read from there as they were."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown, StreamGone
from stratos.store.counters.guard import any_store
from stratos.store.object_store import ObjectStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.moved_texts import RecordUnread
from stratos.store.sealed.stream_store import Found, StreamAsk
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos_gateway.backends import open_streams
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.owned import OwnedStream
from stratos_gateway.streams.settings import StreamsConfig
from tests.support.servers.s3_server import BUCKET, s3_server
from tests.support.worlds.record_world import KEY, RECORDS, TENANT, Gateway, blocks_of

FOLDER, DUE = f"streams/{TENANT}", "stratos:streams:objects"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = open_redis(redis_url)
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
async def objects(s3_endpoint: str, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened = open_store(ObjectStoreConfig(url=f"s3://{BUCKET}/{tmp_path.name}", s3_endpoint_url=s3_endpoint))
    yield opened
    await opened.close()


def note_many(stream: OwnedStream, ids: list[int]) -> None:
    """Tokens that come at once, which blocks alone have."""
    stream.note(ChoiceChunk(0, "", ids, [], None, is_first=False))


async def ended(gateway: Gateway, name: str, num_tokens: int = 1000) -> None:
    """A record of so many tokens, whole."""
    stream = await gateway.begin(name, secrets.token_bytes(700))
    note_many(stream, list(range(num_tokens)))
    stream.note_whole()
    await gateway.turn()


async def segments(objects: ObjectStore) -> list[str]:
    return [found.key for found in await objects.list_all(FOLDER)]


@pytest.mark.parametrize("num", [30, pytest.param(300, marks=pytest.mark.slow)])
async def test_streams_over_the_bound_each_go_on_where_their_gateway_was_killed(
    redis: Redis, objects: ObjectStore, num: int
) -> None:
    """A third of them is whole by then; no record was dropped, and Redis never had more than the bound."""
    bound = 3_500 * num
    one = Gateway(redis, "one", 60.0, objects, bound)
    names, most, heads = [f"s{number}" for number in range(num)], 0, secrets.token_bytes(1000)
    streams = {}
    for name in names:
        streams[name] = await one.begin(name, heads + name.encode())
    for turn in range(6):
        for place, stream in enumerate(streams.values()):
            note_many(stream, [place + 300 * (200 * turn + token) for token in range(200)])
        await one.turn()
        await redis.zadd("stratos:streams:tenants", {TENANT: 0})  # a look is due, however quick the last turn was
        await one.spill.turn()
        most = max(most, int(await redis.get(f"{RECORDS}:bytes")))
    for place, stream in enumerate(streams.values()):
        note_many(stream, [7, 7])
        if place % 3 == 0:
            stream.note_whole()
    await one.turn()
    assert one.events["spilled"] >= num
    assert most < bound
    assert await redis.memory_usage(RECORDS, samples=0) < 2 * bound
    kept = [len(part) for part in await redis.hvals(RECORDS)]
    moved = sum(found.num_bytes for found in await objects.list_all(FOLDER))
    assert sum(kept) + moved > 1.5 * bound, "they would not have had room"

    two = Gateway(redis, "two", 60.0, objects, bound)
    await give_up_all(redis, "one")
    for place, name in enumerate(names):
        found = await two.store.open(StreamAsk(tenant_id=TENANT, stream_id=name))
        assert found.found is (Found.DONE if place % 3 == 0 else Found.TAKEN)
        assert found.head == heads + name.encode()
        assert blocks_of(found) == [place + 300 * token for token in range(1200)] + [7, 7], name


async def give_up_all(redis: Redis, owner: str) -> None:
    """Leases of a killed gateway end."""
    for field, text in (await redis.hgetall(RECORDS)).items():
        if "/" not in field and f'"o":"{owner}"' in text:
            head, _, rest = text.partition('"l":')
            await redis.hset(RECORDS, field, f'{head}"l":0{rest[len(rest) - len(rest.lstrip("0123456789.e+")) :]}')


class Dying:
    """An object store whose caller is killed once an object is written."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def put(self, key: str, content: bytes) -> None:
        await self._inner.put(key, content)
        raise asyncio.CancelledError


async def test_a_gateway_that_is_killed_within_a_move_loses_nothing(redis: Redis, objects: ObjectStore) -> None:
    dying = Gateway(redis, "one", objects=Dying(objects), after_s=0.0)  # type: ignore[arg-type]
    await ended(dying, "s")
    with pytest.raises(asyncio.CancelledError):
        await dying.spill.turn()
    [orphan] = await segments(objects)
    two = Gateway(redis, "two", objects=objects, after_s=0.0)
    assert blocks_of(await two.look("s")) == list(range(1000))
    await redis.zadd("stratos:streams:tenants", {TENANT: 0})
    await two.spill.turn()
    assert await redis.hget(RECORDS, "s/0") is None
    await redis.zadd(DUE, dict.fromkeys(await segments(objects), 0))
    await two.spill.delete_due_objects()
    [kept] = await segments(objects)
    assert kept != orphan
    assert blocks_of(await two.look("s")) == list(range(1000))


async def lose(objects: ObjectStore, key: str, other: str) -> None:
    await objects.delete(key)


async def alter(objects: ObjectStore, key: str, other: str) -> None:
    content = await objects.read(key, 0, 1 << 20)
    await objects.put(key, content[:-5] + bytes(5))


async def cut(objects: ObjectStore, key: str, other: str) -> None:
    await objects.put(key, (await objects.read(key, 0, 1 << 20))[:-5])


async def exchange(objects: ObjectStore, key: str, other: str) -> None:
    await objects.put(key, await objects.read(other, 0, 1 << 20))


@pytest.mark.parametrize("harm", [lose, alter, cut, exchange])
async def test_what_the_object_store_has_lost_or_exchanged_is_gone_and_never_another_text(
    redis: Redis, objects: ObjectStore, harm: object
) -> None:
    """Exchanged for an earlier making of the same record, whose request and tokens were others."""
    one = Gateway(redis, "one", objects=objects, after_s=0.0)
    await ended(one, "s", 999)
    await one.spill.turn()
    [older] = await segments(objects)
    await one.store.drop(TENANT, "s")
    await ended(one, "s")
    await one.spill.turn()
    [newer] = set(await segments(objects)) - {older}
    assert blocks_of(await one.look("s")) == list(range(1000))
    await harm(objects, newer, older)  # type: ignore[operator]
    with pytest.raises(StreamGone):
        await one.look("s")
    assert one.events["lost"] == 1


class Away:
    """An object store that may be away."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name: str) -> object:
        if self.is_away:
            raise DependencyDown("the object store does not answer")
        return getattr(self._inner, name)


async def test_while_the_store_is_away_streams_run_on_and_what_cannot_be_read_says_so(
    redis: Redis, objects: ObjectStore
) -> None:
    """A stream that was taken over, and could not be read, is free for the next one who asks."""
    away = Away(objects)
    one = Gateway(redis, "one", objects=away, after_s=0.0)  # type: ignore[arg-type]
    stream = await one.begin("s", bytes(2000))
    note_many(stream, list(range(1000)))
    await one.turn()
    await one.spill.turn()
    away.is_away = True
    note_many(stream, list(range(1000, 1800)))
    await one.turn()
    await redis.zadd("stratos:streams:tenants", {TENANT: 0})  # a look is due, however quick the last turn was
    with pytest.raises(DependencyDown):
        await one.spill.turn()
    two = Gateway(redis, "two", 600.0, away)  # type: ignore[arg-type]
    await give_up_all(redis, "one")
    with pytest.raises(RecordUnread):
        await two.store.open(StreamAsk(tenant_id=TENANT, stream_id="s"))
    away.is_away = False
    found = await two.store.open(StreamAsk(tenant_id=TENANT, stream_id="s"))
    assert (found.found, blocks_of(found), found.head) == (Found.TAKEN, list(range(1800)), bytes(2000))
    note_many(stream, [1, 2])
    await one.turn()
    assert one.failures == ["stream_moved"]


async def test_a_text_that_changes_within_a_move_stays_as_it_is(
    redis: Redis, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest block, whose owner has lost its lease, and writes it after all."""
    one = Gateway(redis, "one", objects=objects, after_s=0.0)
    stream = await one.begin("s", bytes(2000))
    note_many(stream, [1, 2, 3])
    await one.turn()
    await give_up_all(redis, "one")
    put = objects.put

    async def put_late(key: str, content: bytes) -> None:
        note_many(stream, [4, 5])
        await one.turn()
        await put(key, content)

    monkeypatch.setattr(objects, "put", put_late)
    await one.spill.turn()
    assert blocks_of(await one.look("s")) == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    await give_up_all(redis, "one")
    await redis.zadd("stratos:streams:tenants", {TENANT: 0})
    await one.spill.turn()
    assert await redis.hget(RECORDS, "s/0") is None
    assert blocks_of(await one.look("s")) == [1, 2, 3, 4, 5]


async def test_objects_go_once_no_record_needs_them_and_with_their_tenant(redis: Redis, objects: ObjectStore) -> None:
    one = Gateway(redis, "one", objects=objects, after_s=0.0)
    await ended(one, "s")
    await ended(one, "t")
    await one.spill.turn()
    [both] = await segments(objects)
    for name, left in (("s", [both]), ("t", [])):
        await redis.zadd(f"{RECORDS}:until", {name: 1})
        await redis.zadd(DUE, {both: 0})
        await one.spill.delete_due_objects()
        assert await segments(objects) == left
    assert not await redis.zcard(DUE)
    await ended(one, "u")
    await one.spill.turn()
    assert await segments(objects)
    await one.store.forget(TENANT)
    await one.spill.forget(TENANT)
    assert not await segments(objects)
    assert not await redis.keys(f"{RECORDS}*")


async def test_a_gateway_that_moves_nothing_deletes_what_no_record_needs(redis: Redis, objects: ObjectStore) -> None:
    one, model = Gateway(redis, "one", objects=objects, after_s=0.0), SimpleNamespace(served_name="base")
    settings = SimpleNamespace(streams=StreamsConfig(spill_after_s=0.0), records=RecordStoreConfig(), model=model)
    keys, metrics = SimpleNamespace(find=lambda tenant, purpose: KEY), GatewayMetrics(CollectorRegistry())
    at = cast("Any", settings), cast("Any", keys), any_store, objects, metrics, lambda: True
    _, spill = open_streams(redis, *at)
    assert spill is not None
    await ended(one, "s")
    await one.spill.turn()
    [key] = await segments(objects)
    await ended(one, "t")
    await redis.zadd("stratos:streams:tenants", {TENANT: 0})
    await spill.turn()
    assert await segments(objects) == [key], "nothing has moved, and it is needed"
    await redis.zadd(f"{RECORDS}:until", {"s": 1})
    await redis.zadd(DUE, {key: 0})
    await spill.turn()
    assert await segments(objects) == []
    assert blocks_of(await one.look("t")) == list(range(1000))


async def test_objects_have_nothing_that_can_be_read_without_the_key(redis: Redis, objects: ObjectStore) -> None:
    one = Gateway(redis, "one", objects=objects, after_s=0.0)
    stream = await one.begin("s", b"the Blue Heron flies at dawn" * 40)
    stream.note_whole()
    await one.turn()
    await one.spill.turn()
    [name] = await segments(objects)
    assert b"Heron" not in await objects.read(name, 0, 1 << 20)
    assert (await one.look("s")).head.startswith(b"the Blue Heron")
