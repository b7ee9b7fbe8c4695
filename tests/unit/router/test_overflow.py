"""Requests that may go outside the platform do so as soon as their wait is, or is expected to be, too long."""

from __future__ import annotations

import asyncio

import pytest

from stratos.common.errors import WaitTooLong
from stratos.core.placement import Outcome
from tests.support.worlds.router_scheduler import RouterScheduler


async def test_it_waits_as_long_as_it_says_and_others_wait_on() -> None:
    world = RouterScheduler("decode-0")
    running = [await world.call(request_id=str(index)) for index in range(2)]
    await world.turn()
    patient, hasty = await world.call(request_id="patient"), await world.call(request_id="hasty", overflow_after_ms=500)
    await world.turn(0.4)
    assert not hasty.done()
    await world.turn(0.2)
    assert isinstance(hasty.exception(), WaitTooLong)
    assert not patient.done()
    world.scheduler.complete(running[0].result().handoff_id, Outcome.FINISHED, 1)
    await world.turn()
    assert patient.result().decode.worker_id == "decode-0"
    await asyncio.gather(*running)


async def test_it_is_refused_at_once_where_the_queue_is_too_long() -> None:
    world = RouterScheduler("decode-0")
    calls = [await world.call(request_id=str(index)) for index in range(8)]
    await world.turn()
    for number in range(3):  # one a second, and so five that wait take five seconds
        world.scheduler.complete(calls[number].result().handoff_id, Outcome.FINISHED, 1)
        await world.turn(1.0)
    refused = await world.call(request_id="hasty", overflow_after_ms=1500)
    with pytest.raises(WaitTooLong, match="expected wait"):
        await refused
    waits = await world.call(request_id="slow", overflow_after_ms=20_000)
    await world.turn()
    assert not waits.done()
    for call in [*calls, waits]:
        call.cancel()
    await asyncio.gather(*calls, waits, return_exceptions=True)


async def test_a_full_queue_sends_it_away_instead_of_refusing_it() -> None:
    world = RouterScheduler("decode-0", queue={"max_requests": 1})
    calls = []
    for index in range(3):  # two run, one waits
        calls.append(await world.call(request_id=str(index)))
        await world.turn()
    assert [call.done() for call in calls] == [True, True, False]
    hasty = await world.call(request_id="hasty", overflow_after_ms=60_000)
    assert isinstance(hasty.exception(), WaitTooLong)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
