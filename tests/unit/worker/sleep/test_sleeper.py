"""The sleep of a worker as a state machine: any order of calls, faults and departures ends in a state that is true."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from stratos.common.errors import Busy, FeatureUnavailable, InvalidCheckpoint, StratosError, WorkerLost
from stratos.core.fleet import SleepState
from stratos.worker.sleep.sleeper import Sleeper
from tests.support.virtual_loop import run_virtual

AWAKE, ASLEEP, FAILED = SleepState.AWAKE, SleepState.ASLEEP, SleepState.FAILED


class Engine:
    """Sleeps and wakes in a second each; notes every wrong order."""

    def __init__(self) -> None:
        self.is_awake, self.is_changing = True, False
        self.num_busy = 0
        self.fault: StratosError | None = None
        self.num_wakes = 0

    async def sleep(self) -> int:
        if self.num_busy:
            self.num_busy -= 1
            raise Busy("it has work")
        assert self.is_awake
        await self._change(is_awake=False)
        return 7

    async def wake(self) -> None:
        assert not self.is_awake
        self.num_wakes += 1
        if self.fault is not None:
            raise self.fault
        await self._change(is_awake=True)

    async def _change(self, *, is_awake: bool) -> None:
        assert not self.is_changing, "two changes at once"
        self.is_changing = True
        await asyncio.sleep(1.0)
        self.is_changing, self.is_awake = False, is_awake


class World:
    """A sleeper, its engine, and streams that run."""

    def __init__(self) -> None:
        self.engine, self.looks = Engine(), asyncio.Lock()
        self.num_streams, self.num_given_back, self.are_stuck = 0, 0, False
        self.is_shut = False
        self.num_verified = 0
        self.outcomes: list[str] = []
        self.sleeper = Sleeper(
            self.engine,
            _Clock(),
            self.looks,
            shut=self._shut,
            settle=self._settle,
            verify=self._verify,
            count=lambda outcome, _: self.outcomes.append(outcome),
        )

    def _shut(self, is_shut: bool) -> None:
        self.is_shut = is_shut

    async def _settle(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.num_streams:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        if self.are_stuck and self.num_streams:
            await asyncio.sleep(1.0)
            raise Busy("work does not end")
        self.num_given_back += self.num_streams
        self.num_streams = 0

    async def _verify(self) -> None:
        assert self.engine.is_awake
        assert not self.looks.locked()
        self.num_verified += 1

    def check(self) -> None:
        """Laws of any moment without a call under way."""
        state = self.sleeper.state
        assert state in (AWAKE, ASLEEP, FAILED)
        assert self.is_shut == (state is not AWAKE), "it takes work if and only if it is awake"
        assert self.engine.is_awake == (state is AWAKE)
        assert self.looks.locked() == (state is not AWAKE), "nothing looks at an engine that sleeps"
        assert not self.engine.is_changing
        assert bool(self.sleeper.not_ready_reason) == (state is FAILED)


class _Clock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


def test_it_sleeps_and_wakes_and_both_may_be_asked_for_again() -> None:
    async def scene() -> None:
        world = World()
        for _ in range(2):
            await asyncio.gather(*(world.sleeper.sleep(1.0) for _ in range(3)))
            await world.sleeper.sleep(0)
            assert (world.sleeper.state, world.sleeper.freed_bytes) == (ASLEEP, 7)
            world.check()
            await asyncio.gather(*(world.sleeper.wake() for _ in range(3)))
            await world.sleeper.wake()
            assert world.sleeper.state is AWAKE
            world.check()
        assert (world.engine.num_wakes, world.num_verified) == (2, 2)
        assert world.outcomes == ["asleep", "awake"] * 2

    run_virtual(scene())


def test_a_spare_takes_work_at_once_and_is_as_others_from_then_on() -> None:
    async def scene() -> None:
        world = World()
        world.sleeper.stand_by()
        assert (world.sleeper.state, world.is_shut, world.engine.is_awake) == (SleepState.STANDBY, True, True)
        assert not world.looks.locked(), "probes look at a spare as at any other"
        assert not world.sleeper.not_ready_reason
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(world.sleeper.wake() for _ in range(2)))
        assert asyncio.get_running_loop().time() == began, "nothing is loaded"
        world.check()
        assert world.outcomes == []
        await world.sleeper.sleep(0)
        await world.sleeper.wake()
        world.check()

    run_virtual(scene())


def test_a_spare_that_is_put_to_sleep_is_none_any_more() -> None:
    async def scene() -> None:
        world = World()
        world.sleeper.stand_by()
        await world.sleeper.sleep(0)
        assert world.sleeper.state is ASLEEP
        await world.sleeper.wake()
        world.check()

    run_virtual(scene())


def test_streams_get_their_time_and_are_given_back_then() -> None:
    async def scene() -> None:
        world = World()
        world.num_streams = 2
        sleeping = asyncio.create_task(world.sleeper.sleep(5.0))
        await asyncio.sleep(4.0)
        assert (world.is_shut, world.num_streams, world.engine.is_awake) == (True, 2, True)
        await sleeping
        assert world.num_given_back == 2
        world.check()

    run_virtual(scene())


def test_work_that_does_not_end_leaves_it_awake() -> None:
    async def scene() -> None:
        world = World()
        world.num_streams, world.are_stuck = 1, True
        with pytest.raises(Busy):
            await world.sleeper.sleep(1.0)
        assert world.sleeper.state is AWAKE
        world.check()
        world.are_stuck, world.engine.num_busy = False, 1
        await world.sleeper.sleep(0)  # the engine was a moment late
        await world.sleeper.wake()
        world.engine.num_busy = 1_000_000
        with pytest.raises(Busy):
            await world.sleeper.sleep(0)
        world.check()
        assert world.outcomes == ["refused", "asleep", "awake", "refused"]

    run_virtual(scene())


def test_a_wake_ends_a_fall_that_waits_for_streams() -> None:
    async def scene() -> None:
        world = World()
        world.num_streams = 1
        sleeping = asyncio.create_task(world.sleeper.sleep(60.0))
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await world.sleeper.wake()
        assert asyncio.get_running_loop().time() - began < 0.5
        with pytest.raises(Busy, match="woken"):
            await sleeping
        assert (world.sleeper.state, world.num_streams, world.num_given_back) == (AWAKE, 1, 0)
        world.check()

    run_virtual(scene())


def test_a_wake_that_comes_while_the_engine_falls_asleep_wakes_it_afterwards() -> None:
    async def scene() -> None:
        world = World()
        sleeping = asyncio.create_task(world.sleeper.sleep(0))
        await asyncio.sleep(0.5)
        assert world.engine.is_changing
        await world.sleeper.wake()
        await sleeping
        assert world.sleeper.state is AWAKE
        world.check()

    run_virtual(scene())


def test_a_sleep_waits_for_the_end_of_a_waking() -> None:
    async def scene() -> None:
        world = World()
        await world.sleeper.sleep(0)
        waking = asyncio.create_task(world.sleeper.wake())
        await asyncio.sleep(0.5)
        await world.sleeper.sleep(0)
        await waking
        assert world.sleeper.state is ASLEEP
        world.check()

    run_virtual(scene())


def test_one_that_cannot_wake_says_so_and_takes_nothing_any_more() -> None:
    async def scene() -> None:
        world = World()
        await world.sleeper.sleep(0)
        world.engine.fault = InvalidCheckpoint("the files have changed")
        watch = asyncio.create_task(world.sleeper.wait_failed())
        with pytest.raises(InvalidCheckpoint):
            await world.sleeper.wake()
        with pytest.raises(InvalidCheckpoint):
            await watch
        assert "the files have changed" in world.sleeper.not_ready_reason
        for call in (world.sleeper.wake, lambda: world.sleeper.sleep(0)):
            with pytest.raises(WorkerLost):
                await call()
        world.check()

    run_virtual(scene())


def test_an_engine_that_cannot_sleep_stays_awake() -> None:
    async def scene() -> None:
        world = World()

        async def refuse() -> int:
            raise FeatureUnavailable("not this one")

        world.engine.sleep = refuse  # type: ignore[method-assign]
        with pytest.raises(FeatureUnavailable):
            await world.sleeper.sleep(0)
        world.check()

    run_virtual(scene())


def test_what_looks_at_the_engine_ends_before_it_sleeps() -> None:
    async def scene() -> None:
        world = World()
        await world.looks.acquire()
        sleeping = asyncio.create_task(world.sleeper.sleep(0))
        await asyncio.sleep(1.0)
        assert world.engine.is_awake
        world.looks.release()
        await sleeping
        world.check()

    run_virtual(scene())


@pytest.mark.parametrize("seed", range(150))
def test_any_order_of_calls_faults_and_departures_ends_in_a_state_that_is_true(seed: int) -> None:
    dice = random.Random(seed)

    async def scene() -> None:
        world, calls = World(), list[asyncio.Task[None]]()
        for _ in range(dice.randrange(2, 14)):
            action = dice.choice(["sleep", "sleep", "wake", "wake", "stream", "busy", "leave", "stuck", "fault"])
            if action == "sleep":
                calls.append(asyncio.create_task(world.sleeper.sleep(dice.choice([0, 0.5, 3.0]))))
            elif action == "wake":
                calls.append(asyncio.create_task(world.sleeper.wake()))
            elif action == "stream" and not world.is_shut:
                world.num_streams += 1
            elif action == "busy":
                world.engine.num_busy = dice.choice([0, 1, 2])
            elif action == "leave" and calls:
                dice.choice(calls).cancel()  # its caller is gone; what it began goes on
            elif action == "stuck":
                world.are_stuck = dice.random() < 0.5
            elif action == "fault" and dice.random() < 0.2:
                world.engine.fault = InvalidCheckpoint("gone")
            await asyncio.sleep(dice.choice([0, 0, 0.05, 0.4, 1.1, 2.5]))
        results = await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(10.0)  # what was begun by callers that left
        world.check()
        bugs = [r for r in results if isinstance(r, BaseException) and not isinstance(r, StratosError)]
        assert all(isinstance(bug, asyncio.CancelledError) for bug in bugs), bugs
        with suppress(StratosError):
            await world.sleeper.wake()
        assert world.sleeper.state is (FAILED if world.sleeper.not_ready_reason else AWAKE)
        world.check()

    run_virtual(scene())


def test_a_spare_that_cannot_sleep_stands_by_still() -> None:
    async def scenario() -> None:
        world = World()
        world.sleeper.stand_by()
        world.engine.num_busy = 1_000_000
        with pytest.raises(Busy):
            await world.sleeper.sleep(0.0)
        assert (world.sleeper.state, world.is_shut) == (SleepState.STANDBY, True)
        world.engine.num_busy = 0
        await world.sleeper.wake()
        world.check()
        assert world.sleeper.state is AWAKE

    run_virtual(scenario())
