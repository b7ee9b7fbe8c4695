"""Requests whose model has no worker that may be chosen: they wait for one that is started, or wakes."""

from __future__ import annotations

import asyncio

import pytest

from stratos.common.errors import QueueTimeout
from stratos.core.fleet import SleepState
from stratos.core.placement import WorkerRole
from stratos.routing.fleet_state import Member
from tests.support.worlds.router_scheduler import RouterScheduler


async def test_a_request_that_finds_no_worker_waits_for_one_to_be_started() -> None:
    world = RouterScheduler(queue={"ttl_s": 3, "wake_timeout_s": 20})
    waiting = await world.call()
    await world.turn(19.99)
    assert not waiting.done()
    await world.turn(0.01)
    with pytest.raises(QueueTimeout, match=r"within 20\.0 s"):
        await waiting
    woken = await world.call(request_id="2")
    await world.turn(15)
    world.fleet.set_members([Member("decode-0", "decode-0:1", WorkerRole.DECODE)])
    world.status("decode-0")
    await world.turn()
    assert (await woken).decode is not None


async def test_a_worker_that_left_discovery_alive_is_none_that_may_be_chosen() -> None:
    world = RouterScheduler("decode-0", "prefill-0", queue={"ttl_s": 3, "wake_timeout_s": 20})
    assert world.fleet.has_prefill("m")
    world.fleet.set_members([])
    assert not world.fleet.has_prefill("m")
    waiting = await world.call()
    await world.turn(19.99)
    assert not waiting.done(), "it waits for a worker to be started"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_request_that_waits_as_its_worker_falls_asleep_waits_on_for_it_to_wake() -> None:
    world = RouterScheduler("decode-0", queue={"ttl_s": 3, "wake_timeout_s": 20})
    world.status("decode-0", max_num_seqs=1)
    running = await world.call(request_id="runs")
    await world.turn()
    assert running.done()
    full = await world.call(request_id="full")
    world.status("decode-0", num_running=8)
    await world.turn(2.9)
    world.status("decode-0", sleep_state=SleepState.FALLING_ASLEEP)
    early = await world.call(request_id="early")
    for _ in range(12):
        world.status("decode-0", sleep_state=SleepState.ASLEEP)
        await world.turn(1.0)
    assert not full.done(), "its model is asleep: it has the time of one that was asked for then"
    [worker] = world.scheduler.fleet().workers
    assert (worker.is_live, worker.is_resting, worker.out_reason) == (False, True, "asleep")
    world.status("decode-0")
    await world.turn()
    assert (await full).decode.worker_id == (await early).decode.worker_id == "decode-0"
