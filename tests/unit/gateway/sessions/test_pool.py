"""One session per worker process: shared, replaced when it broke, forgotten when it cannot be opened."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import WorkerLost
from stratos.core.placement import WorkerRef
from stratos_gateway.sessions.pool import SessionPool
from tests.support.fakes.gateway_fakes import worker


@dataclass
class FakeSession:
    fails: bool = False
    is_broken: bool = False
    num_opened: int = 0
    step: int = 7

    async def open(self, timeout_s: float) -> None:
        self.num_opened += 1
        await asyncio.sleep(0)
        if self.fails:
            raise WorkerLost("does not open")


@dataclass
class World:
    failing: int = 0
    """The first so many sessions do not open."""
    built: list[FakeSession] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def build(self, ref: WorkerRef) -> Any:
        self.built.append(FakeSession(fails=len(self.built) < self.failing))
        return self.built[-1]

    def pool(self) -> SessionPool:
        return SessionPool(self.build, FakeClock(), 1.0, self.counts.append)


async def test_all_requests_share_one_session_with_a_worker() -> None:
    world = World()
    pool = world.pool()
    first, second = await asyncio.gather(pool.get(worker(1)), pool.get(worker(1)))
    assert first is second is await pool.get(worker(1))
    assert await pool.get(worker(2)) is not first
    assert [session.num_opened for session in world.built] == [1, 1]
    assert world.counts[-1] == 2
    num_told = len(world.counts)
    await pool.get(worker(1))
    assert len(world.counts) == num_told, "a session that is open changes no number"


async def test_a_broken_session_is_replaced() -> None:
    world = World()
    pool = world.pool()
    first = await pool.get(worker(1))
    first.is_broken = True
    second = await pool.get(worker(1))
    assert second is not first
    assert len(world.built) == 2


async def test_opening_that_fails_is_told_to_all_and_tried_again_later() -> None:
    world = World(failing=1)
    pool = world.pool()
    results = await asyncio.gather(pool.get(worker(1)), pool.get(worker(1)), return_exceptions=True)
    assert [type(result) for result in results] == [WorkerLost, WorkerLost]
    assert await pool.is_back(worker(1))
    assert len(world.built) == 2


async def test_a_worker_that_does_not_open_is_not_back() -> None:
    world = World(failing=1)
    assert not await world.pool().is_back(worker(1))


async def test_a_worker_that_answers_has_moved_only_when_its_steps_have() -> None:
    pool = World().pool()
    assert await pool.has_moved(worker(1), 6)
    assert not await pool.has_moved(worker(1), 7)
    assert not await World(failing=1).pool().has_moved(worker(1), 6)


async def test_a_caller_that_leaves_does_not_end_the_opening_for_others() -> None:
    world = World()
    pool = world.pool()
    leaving, staying = asyncio.create_task(pool.get(worker(1))), asyncio.create_task(pool.get(worker(1)))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not (await staying).is_broken
    assert len(world.built) == 1
