"""A bound for answers of others does not count the time in which the event loop itself was late."""

from __future__ import annotations

import asyncio
import time

import pytest

from stratos.store.connections.awake_timeout import LOOK_S, AwakeTimeout

WITHIN_S = 4 * LOOK_S


async def test_an_answer_that_came_while_the_loop_was_held_up_is_in_time() -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()
    loop.call_at(loop.time() + WITHIN_S - LOOK_S / 2, answer.set_result, "in time")
    loop.call_soon(time.sleep, 2 * WITHIN_S)
    async with AwakeTimeout(WITHIN_S):
        assert await answer == "in time"


async def test_one_that_never_comes_is_waited_for_no_longer_than_that() -> None:
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        async with AwakeTimeout(WITHIN_S):
            await asyncio.Event().wait()
    assert time.monotonic() - began_s >= WITHIN_S


async def test_without_a_bound_it_waits() -> None:
    async with AwakeTimeout(None):
        await asyncio.sleep(0)
