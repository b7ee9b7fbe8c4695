"""Blocks that end when their time is over."""

from __future__ import annotations

import asyncio

import pytest

from stratos_gateway.access.task_end import EndsLate, TaskEnd


class Late(Exception):
    """The time is over."""


class Elsewhere(Exception):
    """Another reason."""


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_what_is_awaited_ends_with_its_time_and_the_task_goes_on() -> None:
    for timeout_s in (0.001, 0.0, -1.0):
        with pytest.raises(Late), EndsLate(timeout_s, Late):
            await forever()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_is_over_in_time_is_ended_no_more() -> None:
    made: list[Late] = []

    def make() -> Late:
        made.append(Late())
        return made[-1]

    for timeout_s in (0.001, None):
        with EndsLate(timeout_s, make):
            await asyncio.sleep(0)
    await asyncio.sleep(0.002)
    assert made == []


async def test_the_one_whose_time_is_over_ends_of_several_around_each_other() -> None:
    with pytest.raises(Late), EndsLate(0.001, Late), TaskEnd(), EndsLate(None, Elsewhere):
        await forever()
    inner = TaskEnd()
    asyncio.get_running_loop().call_soon(inner, Elsewhere())
    with pytest.raises(Elsewhere), EndsLate(None, Late), inner:
        await forever()


async def test_who_cancels_the_task_is_told_so() -> None:
    async def work() -> None:
        with EndsLate(60.0, Late):
            await forever()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
