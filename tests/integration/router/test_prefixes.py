"""Requests go to the worker whose prefix cache has their prompt: engine, stream, index and choice together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from stratos.api.worker.v1 import cache_pb2, cache_pb2_grpc
from stratos.core.cache_changes import CacheChanges, short_hashes
from stratos.core.placement import Placement, WorkerRole
from stratos.core.requests.terms import RequestTerms
from stratos.routing.fleet_state import Member
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.rpc.clients.channel import channel
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.codec.cache import CACHE_CHANGES
from stratos_gateway.generation.prompt_names import PrefixNames
from stratos_router.cache_follower import SWEPT_BLOCKS, CacheFollower
from stratos_router.metrics import RouterMetrics
from tests.support.waiting import eventually
from tests.support.worlds.router_world import ask, finished, router_process, until_live
from tests.support.worlds.worker_world import Worker, open_world

DECODE = WorkerRole.DECODE
SALT = b"tenant-salt"
PROMPT = list(range(100, 180))


async def compute(worker: Worker, world: Any, prompt: list[int], name: str) -> None:
    """Run a prompt, so that the worker has its blocks."""
    gateway = await world.gateway(worker)
    await (await gateway.submit(prompt, request_id=name, cache_salt=SALT)).over()


async def place(client: RouterClient, number: int, names: tuple[int, ...] = (), **changes: Any) -> Placement:
    request = ask(f"req-{number}", model_digest="fake", block_hashes=names, **changes)
    return await client.schedule(request)


async def test_a_prompt_is_placed_where_its_prefix_is(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        workers = [await world.start(DECODE, worker_id=f"decode-{n}", fake={"num_blocks": 72}) for n in range(3)]
        static = "static://" + ",".join(f"decode@{worker.process.address}" for worker in workers)
        async with router_process(tmp_path, static, policies__default="prefix") as client:
            await until_live(client, *(worker.process.address for worker in workers))
            gateway = PrefixNames(max_blocks=4)
            terms = RequestTerms(cache_salt=SALT)
            assert gateway.names(terms, "fake", PROMPT) == ()
            gateway.learn("fake", await place(client, 0))
            names = gateway.names(terms, "fake", PROMPT)
            assert len(names) == 4
            assert set(names) != set(gateway.names(RequestTerms(cache_salt=b"other"), "fake", PROMPT))
            numbers = iter(range(1, 10_000))

            async def all_go_to(worker: Worker) -> bool:
                placements = [await place(client, next(numbers), names) for _ in range(3)]
                for placement in placements:
                    await client.complete([finished(placement)])
                return {p.worker.incarnation for p in placements} == {worker.ref.incarnation}

            for turn, worker in enumerate((workers[1], workers[2])):
                await compute(worker, world, PROMPT, f"turn-{turn}")
                await eventually(lambda worker=worker: all_go_to(worker))
                await worker.process.opened.context.engine.forget_blocks(_hashes(worker))


def _hashes(worker: Worker) -> list[bytes]:
    engine = worker.process.opened.context.engine
    return list(engine.inspect().cached_blocks)  # type: ignore[attr-defined]


class ScriptedCache(cache_pb2_grpc.CacheServiceServicer):
    """Each call of WatchCache sends the next script, then waits, or ends where the script says so."""

    def __init__(self) -> None:
        self.scripts: list[list[tuple[str, CacheChanges] | str]] = []
        self.requests: list[tuple[str, int]] = []

    async def WatchCache(self, request: cache_pb2.WatchCacheRequest, context: Any) -> AsyncIterator[Any]:
        self.requests.append((request.incarnation, request.after))
        for entry in self.scripts.pop(0) if self.scripts else ["wait"]:
            if entry == "break":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the process is gone")
            elif entry == "wait":
                await asyncio.Event().wait()
            else:
                incarnation, changes = entry
                yield CACHE_CHANGES.to_pb(changes, incarnation=incarnation)


@asynccontextmanager
async def following(service: ScriptedCache, silent_after_s: float = 20.0) -> AsyncIterator[PrefixIndex]:
    server = grpc.aio.server()
    cache_pb2_grpc.add_CacheServiceServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    index = PrefixIndex(max_blocks=100)
    follower = CacheFollower(index, RouterMetrics(CollectorRegistry()), silent_after_s, channel)
    task = asyncio.create_task(follower.follow_cache(Member("decode-0", address, DECODE)))
    try:
        yield index
    finally:
        task.cancel()
        await asyncio.wait({task})
        await server.stop(None)


def changes(after: int, last: int, *stored: int, removed: tuple[int, ...] = ()) -> CacheChanges:
    return CacheChanges(after=after, last=last, stored=stored, removed=removed)


def dump(last: int, *stored: int) -> CacheChanges:
    return CacheChanges(after=0, last=last, stored=stored, is_dump=True)


async def until_blocks(index: PrefixIndex, incarnation: str, *names: int) -> None:
    await eventually(lambda: index.blocks_of(incarnation) == set(names))


class CountedIndex(PrefixIndex):
    """Counts the portions in which it is swept."""

    num_sweeps = 0

    def sweep(self, max_blocks: int) -> bool:
        self.num_sweeps += 1
        assert max_blocks == SWEPT_BLOCKS
        return super().sweep(max_blocks)


async def test_a_worker_that_goes_leaves_the_index_in_portions() -> None:
    """All of its blocks at once would hold up every placement."""
    index = CountedIndex(max_blocks=10 * SWEPT_BLOCKS)
    index.apply("", dump(1, *range(10 * SWEPT_BLOCKS)))  # as of a member that has not said which process it is
    follower = CacheFollower(index, RouterMetrics(CollectorRegistry()), 20.0, channel)
    task = asyncio.create_task(follower.follow_cache(Member("decode-0", "127.0.0.1:1", DECODE)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert len(index) == 0
    assert index.num_sweeps < 10
    await eventually(lambda: index.num_sweeps == 10)
    assert not index.sweep(SWEPT_BLOCKS)


async def test_a_gap_is_closed_by_the_range_and_a_broken_stream_by_a_dump() -> None:
    service = ScriptedCache()
    service.scripts = [
        [("a", dump(3, 1, 2)), ("a", changes(3, 4, 3)), ("a", changes(6, 7, 9)), "wait"],
        [("a", changes(4, 7, 8, 9, removed=(1,))), ("a", changes(7, 8, 10)), "break"],
        [("a", dump(9, 20)), "wait"],
    ]
    async with following(service) as index:
        await until_blocks(index, "a", 20)
    assert service.requests == [("", 0), ("a", 4), ("", 0)]
    assert len(index) == 0, "who is not followed leaves nothing"


async def test_another_process_at_the_address_replaces_the_old_one() -> None:
    service = ScriptedCache()
    service.scripts = [[("a", dump(3, 1, 2)), "break"], [("b", dump(1, 7)), "wait"]]
    async with following(service) as index:
        await until_blocks(index, "b", 7)
        assert index.blocks_of("a") == frozenset()
        assert index.match([1]).depths == {}


async def test_a_silent_stream_is_opened_again() -> None:
    service = ScriptedCache()
    service.scripts = [[("a", dump(3, 1)), "wait"], [("a", dump(5, 2)), "wait"]]
    async with following(service, silent_after_s=0.3) as index:
        await until_blocks(index, "a", 2)


async def test_a_worker_tells_what_a_reader_lacks_and_starts_again_for_strangers(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        worker = await world.start(DECODE, scheduler={"max_cache_changes": 8})
        engine = worker.process.opened.context.engine
        await compute(worker, world, PROMPT[:40], "first")
        peer = channel(worker.process.address)
        stub = cache_pb2_grpc.CacheServiceStub(peer)

        async def first(**request: Any) -> Any:
            call = stub.WatchCache(cache_pb2.WatchCacheRequest(**request))
            message = await call.read()
            call.cancel()
            return message

        whole = await first()
        assert whole.is_dump
        assert whole.incarnation == worker.ref.incarnation
        assert set(whole.stored) == set(short_hashes(_hashes(worker)))
        known = {"incarnation": whole.incarnation, "after": whole.last}
        assert not (await first(**known)).is_dump
        await engine.forget_blocks(_hashes(worker)[:1])
        assert len((await first(**known)).removed) == 1
        for number in range(8):
            await compute(worker, world, [number * 100 + i for i in range(40)], f"more-{number}")
        assert (await first(**known)).is_dump, "the ring is shorter than what happened"
        assert (await first(incarnation="another", after=whole.last)).is_dump
        await peer.close()
