"""The end of a connection, and the work that it ends."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from stratos_gateway.http.body import DEPARTURE, Departure, until_disconnect


async def receive() -> Message:
    raise AssertionError("a server that tells of departures is not asked")


def scope_of(departure: Departure) -> Scope:
    return {"type": "http", "extensions": {DEPARTURE: departure}}


async def test_an_answer_whose_last_steps_end_late_takes_nothing_from_the_next_request() -> None:
    """The connection is kept: the next request begins as soon as the answer is out."""
    departure, last_steps, begun = Departure(), asyncio.Event(), asyncio.Event()

    async def settle() -> None:
        begun.set()
        await last_steps.wait()

    async def compute() -> None:
        await asyncio.Event().wait()

    first = asyncio.create_task(until_disconnect(scope_of(departure), receive, settle(), lambda: True))
    await begun.wait()
    second = asyncio.create_task(until_disconnect(scope_of(departure), receive, compute()))
    await asyncio.sleep(0)
    last_steps.set()
    await first
    departure.note()
    with pytest.raises(ClientDisconnect):
        await asyncio.wait_for(second, 1.0)


async def test_a_client_that_left_before_ends_work_that_waits_and_nothing_else() -> None:
    departure = Departure()
    departure.note()

    async def work() -> None:
        """Needs no turn of the event loop."""

    await until_disconnect(scope_of(departure), receive, work())
    await asyncio.sleep(0)
    with pytest.raises(ClientDisconnect):
        await until_disconnect(scope_of(departure), receive, asyncio.Event().wait())  # type: ignore[arg-type]
