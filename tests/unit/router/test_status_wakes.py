"""How often statuses let a router look at its queue: by a tick, and at once where there may be more room."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from stratos.core.placement import WorkerRole
from stratos.routing.fleet_state import Member
from stratos.worker.status import MIN_INTERVAL_S, StatusFeed
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import TICK_S, PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings
from tests.support.virtual_loop import VirtualLoop, run_virtual
from tests.support.worlds.fleet_samples import make_request, make_status

NUM_WORKERS, SECONDS = 100, 1.0


class CountedLoop(PlacementLoop):
    """Counts its turns."""

    num_turns = 0

    def turn(self, now: float, most: int | None = None) -> bool:
        self.num_turns += 1
        return super().turn(now, most)


def made_router(num_workers: int) -> CountedLoop:
    clock = asyncio.get_running_loop()
    assert isinstance(clock, VirtualLoop)
    metrics = RouterMetrics(CollectorRegistry())
    settings = RouterSettings(discovery="static://decode@a:1", admission={"max_waiting_per_worker": 0})
    router = CountedLoop(make_dispatcher(settings, metrics, Random(1)), metrics, clock)
    names = [f"w{place}" for place in range(num_workers)]
    router.dispatcher.fleet.set_members([Member(name, f"{name}:1", WorkerRole.DECODE) for name in names])
    return router


async def turns_of_a_second(*, is_new: bool) -> int:
    """Each worker's status comes ten times, spread over the second; another version each time, or the same."""
    router, versions = made_router(NUM_WORKERS), itertools.count(2)
    for place in range(NUM_WORKERS):
        router.on_status(f"w{place}", make_status(f"w{place}", version=1))
    running = asyncio.create_task(router.run())
    await asyncio.sleep(TICK_S)
    before = router.num_turns
    for number in range(10 * NUM_WORKERS):
        name = f"w{number % NUM_WORKERS}"
        router.on_status(name, make_status(name, version=next(versions) if is_new else 1))
        await asyncio.sleep(SECONDS / NUM_WORKERS / 10)
    running.cancel()
    return router.num_turns - before


@pytest.mark.parametrize(("is_new", "least", "most"), [(False, 1, SECONDS / TICK_S + 2), (True, 900, 1001)])
def test_a_thousand_statuses_that_say_the_same_cost_no_turn(is_new: bool, least: float, most: float) -> None:
    assert least <= run_virtual(turns_of_a_second(is_new=is_new)) <= most


async def waits_for_room() -> float:
    router = made_router(1)
    router.on_status("w0", make_status("w0", version=1, max_num_seqs=1, num_running=1))
    running = asyncio.create_task(router.run())
    call = asyncio.create_task(router.schedule(make_request("r")))
    await asyncio.sleep(1.5 * TICK_S)
    router.on_status("w0", make_status("w0", version=1, max_num_seqs=1, num_running=1))
    await asyncio.sleep(0.001)
    assert not call.done()
    begin = asyncio.get_running_loop().time()
    router.on_status("w0", make_status("w0", version=2, max_num_seqs=1))
    await call
    running.cancel()
    return asyncio.get_running_loop().time() - begin


def test_room_is_given_at_once() -> None:
    assert run_virtual(waits_for_room()) == 0.0


async def statuses_of_a_second() -> int:
    feed, told, end = StatusFeed(), 0, asyncio.get_running_loop().time() + SECONDS

    async def change() -> None:
        while True:
            feed.notify()
            await asyncio.sleep(0.001)

    changing = asyncio.create_task(change())
    async with aclosing(feed.changes(10.0)) as stream:
        async for _ in stream:
            if asyncio.get_running_loop().time() > end:
                break
            told += 1
    changing.cancel()
    return told


def test_a_worker_tells_a_thousand_changes_in_twenty_statuses() -> None:
    assert SECONDS / MIN_INTERVAL_S - 2 <= run_virtual(statuses_of_a_second()) <= SECONDS / MIN_INTERVAL_S + 1
