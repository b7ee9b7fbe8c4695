"""Work that outlives the call that began it."""

from __future__ import annotations

import asyncio

import pytest

from stratos.common.background import BackgroundTasks, end_tasks, happens


async def test_close_waits_for_what_is_open_and_for_what_that_begins() -> None:
    tasks, done = BackgroundTasks(), []

    async def work(depth: int) -> None:
        await asyncio.sleep(0)
        if depth:
            tasks.spawn(work(depth - 1), name=f"work-{depth}")
        done.append(depth)

    tasks.spawn(work(2), name="work")
    assert len(tasks) == 1
    await tasks.close()
    assert sorted(done) == [0, 1, 2]
    assert not len(tasks)


async def test_a_failure_is_logged_once_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise RuntimeError("broken")

    tasks.spawn(fail(), name="the failing one")
    await tasks.close()
    (record,) = caplog.records
    assert "the failing one" in record.getMessage()


async def test_cancelled_work_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()
    tasks.spawn(asyncio.sleep(60), name="sleep")
    tasks.own(asyncio.get_running_loop().create_future())
    tasks.cancel()
    await tasks.close()
    assert not caplog.records


async def test_a_task_that_misses_its_cancellation_is_cancelled_once_more() -> None:
    missed = 0

    async def deaf() -> None:
        nonlocal missed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if missed:
                    raise
                missed += 1

    async def fails() -> None:
        raise RuntimeError("broken")

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    await end_tasks(tasks, patience_s=0.01)
    assert missed == 1
    assert all(task.done() for task in tasks)
    await end_tasks([])


async def test_a_task_may_tidy_up_before_it_ends() -> None:
    ends = asyncio.Event()

    async def tidies() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            await ends.wait()
        return ""

    task = asyncio.create_task(tidies())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks([task]))
    await asyncio.sleep(0)
    assert not task.done()
    ends.set()
    await ending
    assert task.cancelled()


async def test_an_event_happens_in_time_or_not() -> None:
    event = asyncio.Event()
    assert not await happens(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await happens(event, None)
    assert await happens(event, 0), "it was set before"


async def test_who_waits_can_be_cancelled() -> None:
    waiting = asyncio.create_task(happens(asyncio.Event(), None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
