"""Asking all routers: sums, routers that do not answer, routers that come and go."""

from __future__ import annotations

import asyncio

import pytest

from stratos.common.errors import DependencyDown, WorkerLost
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos_autoscaler.routers import RouterFleets
from tests.support.worlds.fleet_samples import make_status


class FakeRouter:
    def __init__(self, address: str) -> None:
        self.address = address
        self.is_down = self.is_closed = False
        self.call: asyncio.Future[None] | None = None
        """That a slow one waits for; closing cancels it, as gRPC does."""

    async def fleet(self) -> Fleet:
        if self.call is not None:
            await self.call
        if self.is_down:
            raise WorkerLost(f"{self.address} did not answer")
        queue = QueueDepth(model_digest="m", priority_class=0, num_requests=2, num_tokens=9, oldest_s=0.0)
        statuses = [make_status(name, num_running=count) for name, count in (("a", 3), ("other", 5))]
        return Fleet(queues=(queue,), workers=tuple(FleetWorker(ref=w.ref, status=w, is_live=True) for w in statuses))

    async def close(self) -> None:
        self.is_closed = True
        if self.call is not None:
            self.call.cancel()


class World:
    def __init__(self, *addresses: str) -> None:
        self.addresses = frozenset(addresses)
        self.routers: dict[str, FakeRouter] = {}
        self.fleets = RouterFleets(self.now, self.connect)

    async def now(self) -> frozenset[str]:
        return self.addresses

    def connect(self, address: str) -> FakeRouter:
        self.routers[address] = FakeRouter(address)
        return self.routers[address]


async def test_the_queues_of_all_routers_are_added_and_missing_ones_counted() -> None:
    world = World("a:1", "b:1")
    found = await world.fleets.fleet()
    assert (found.fleet.queues[0].num_requests, found.num_missing) == (4, 0)
    world.routers["a:1"].is_down = True
    found = await world.fleets.fleet()
    assert (found.fleet.queues[0].num_requests, found.num_missing) == (2, 1)
    world.routers["b:1"].is_down = True
    with pytest.raises(DependencyDown, match="did not answer"):
        await world.fleets.fleet()


async def test_routers_come_and_go() -> None:
    world = World("a:1")
    await world.fleets.fleet()
    world.addresses = frozenset({"b:1", "c:1"})
    assert (await world.fleets.fleet()).fleet.queues[0].num_requests == 4
    assert [router.is_closed for router in world.routers.values()] == [True, False, False]
    await world.fleets.close()
    assert all(router.is_closed for router in world.routers.values())


async def test_no_address_is_no_data() -> None:
    with pytest.raises(DependencyDown, match="no router"):
        await World().fleets.fleet()


async def test_requests_of_some_workers_count_once_and_only_when_all_routers_answer() -> None:
    world = World("a:1", "b:1")
    assert await world.fleets.num_requests({"a", "gone"}, "m") == 3 + 2 + 2, "running, and waiting at both routers"
    assert await world.fleets.num_requests({"a"}, "") == 3
    assert await world.fleets.num_requests({"gone"}, "another") == 0
    world.routers["a:1"].is_down = True
    assert await world.fleets.num_requests({"gone"}, "another") is None


async def test_who_finds_a_router_gone_cancels_no_call_of_another() -> None:
    """The defect: the control loop was cancelled with its call, and the process ended."""
    world = World("a:1", "b:1")
    await world.fleets.fleet()
    held = world.routers["a:1"].call = asyncio.get_running_loop().create_future()
    looking = asyncio.create_task(world.fleets.fleet())
    await asyncio.sleep(0)
    world.addresses = frozenset({"b:1"})
    draining = asyncio.create_task(world.fleets.num_requests({"a"}, "m"))
    for _ in range(20):  # turns of the loop, in which it could end
        await asyncio.sleep(0)
    if not held.done():
        held.set_result(None)
    assert (await looking).num_missing == 0
    assert await draining == 3 + 2, "of the router that is left"
    assert world.routers["a:1"].is_closed
