"""A router that was held up itself does not blame its workers, and expiry does not cost a choice per request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import QueueTimeout
from stratos.routing.dispatch import explanations as explaining
from stratos_router.silence import SilenceWatch
from tests.support.waiting import eventually
from tests.support.worlds.router_scheduler import RouterScheduler


def is_live(world: RouterScheduler, name: str) -> bool:
    return next(worker.is_live for worker in world.scheduler.fleet().workers if worker.ref.worker_id == name)


@pytest.fixture
def running_world() -> RouterScheduler:
    return RouterScheduler("decode-0", "decode-1")


async def test_workers_are_not_out_after_a_stall_of_the_router_and_are_when_they_stay_silent(running_world) -> None:
    world = running_world
    running = asyncio.create_task(world.scheduler.run())
    await asyncio.sleep(0)
    world.clock.advance(5.0)  # SIGSTOP of this process: nothing was read
    placed = await world.scheduler.schedule(world.request())
    assert placed.worker.worker_id.startswith("decode-")
    labels = {"role": "decode", "reason": "silent"}
    assert world.registry.get_sample_value("stratos_router_worker_evictions_total", labels) == 0
    for _ in range(8):  # the loop turns, one worker speaks
        world.clock.advance(0.3)
        world.status("decode-0", step=_ + 1)
        world.scheduler.wake()
        await asyncio.sleep(0.01)
    await eventually(lambda: is_live(world, "decode-0") and not is_live(world, "decode-1"), "silence counts again")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_computes_gets_its_time_again_after_a_stall() -> None:
    world = RouterScheduler("decode-0")
    for _ in range(2):
        world.status("decode-0", step=7, is_computing=True)
    world.clock.advance(5.0)
    world.fleet.forgive(world.clock.now())
    world.status("decode-0", step=7, is_computing=True)
    assert is_live(world, "decode-0")
    world.clock.advance(1.0)
    world.status("decode-0", step=7, is_computing=True)
    world.clock.advance(1.1)
    world.status("decode-0", step=7, is_computing=True)
    assert not is_live(world, "decode-0"), "it stands still"


async def test_a_silent_stream_ends_unless_the_silence_was_ones_own() -> None:
    clock = FakeClock()
    watch = SilenceWatch(clock, 5.0)
    async with asyncio.timeout(None) as limit:
        with watch.watched(limit):
            watch.end_silent(6.0 + clock.now(), is_late=True)
            watch.end_silent(10.0 + clock.now())
            await asyncio.sleep(0)

    async def silent() -> None:
        async with asyncio.timeout(None) as limit:
            with watch.watched(limit):
                watch.end_silent(6.0 + clock.now())
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await silent()


@contextmanager
def counted_choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    calls = []
    real = explaining.choose
    monkeypatch.setattr(explaining, "choose", lambda *args: calls.append(1) or real(*args))
    yield calls


async def test_requests_that_expire_together_share_one_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    world = RouterScheduler("decode-0")
    world.status("decode-0", num_running=2)
    calls = [await world.call(request_id=str(number)) for number in range(200)]
    wide = await world.call(request_id="wide", num_choices=2)
    world.clock.advance(31.0)
    world.status("decode-0", num_running=2)
    with counted_choices(monkeypatch) as choices:
        await world.turn()
    errors = [call.exception() for call in (*calls, wide)]
    assert all(isinstance(error, QueueTimeout) and "batch_slots: 1" in error.message for error in errors)
    assert len(choices) == 2
