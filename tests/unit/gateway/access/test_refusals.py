"""Requests that run when their tenant, key or model is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.errors import InvalidApiKey, PermissionDenied, StratosError
from stratos.core.tenant import Tenant
from stratos_gateway.access.concurrency import Admission, Place
from stratos_gateway.metrics import GatewayMetrics


class Door:
    """A gateway with one open request."""

    def __init__(self) -> None:
        self.admission = Admission(8, 8, GatewayMetrics(CollectorRegistry()))
        self.reason: StratosError | None = None
        self.place: Place

    def refusal(self) -> StratosError | None:
        return self.reason


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    with made.admission.enter(Tenant(name="t")) as made.place:
        made.place.refusals.append(made.refusal)
        yield made


async def test_a_running_request_is_told_once(door: Door) -> None:
    told: list[StratosError] = []
    with door.admission.ends_by(door.place, told.append, lambda: True):
        door.admission.recheck()
        assert told == []
        door.reason = PermissionDenied("suspended")
        door.admission.recheck()
        door.admission.recheck()
    assert told == [door.reason]


async def test_a_request_that_was_refused_as_it_was_prepared_ends_as_it_begins(door: Door) -> None:
    told: list[StratosError] = []
    door.reason = InvalidApiKey("revoked")
    door.admission.recheck()
    with door.admission.ends_by(door.place, told.append, lambda: False):
        assert told == [door.reason]


async def test_what_a_refused_request_tries_next_is_refused_as_well(door: Door) -> None:
    told: list[StratosError] = []
    door.reason = InvalidApiKey("revoked")
    door.admission.recheck()
    for _ in range(2):
        with door.admission.ends_by(door.place, told.append, lambda: False):
            pass
    assert told == [door.reason] * 2


async def test_work_without_an_end_of_its_own_is_cancelled(door: Door) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    running = asyncio.create_task(door.admission.run_in(door.place, work()))
    await begun.wait()
    door.reason = PermissionDenied("blocked")
    door.admission.recheck()
    with pytest.raises(PermissionDenied):
        await running
    assert left.is_set()
    assert door.place.end is None


async def test_work_that_ends_by_itself_gives_its_result_or_its_error(door: Door) -> None:
    async def result() -> int:
        return 7

    async def error() -> int:
        raise ZeroDivisionError

    assert await door.admission.run_in(door.place, result()) == 7
    with pytest.raises(ZeroDivisionError):
        await door.admission.run_in(door.place, error())


async def test_a_task_that_waits_is_ended_with_its_place_and_goes_on_behind_it(door: Door) -> None:
    begun = asyncio.Event()

    async def request() -> StratosError:
        try:
            with door.admission.ends_task(door.place):
                begun.set()
                await asyncio.Event().wait()
        except PermissionDenied as error:
            await asyncio.sleep(0)  # it can await again
            return error
        raise AssertionError

    running = asyncio.create_task(request())
    await begun.wait()
    door.reason = PermissionDenied("blocked")
    door.admission.recheck()
    assert await running is door.reason
    assert running.cancelling() == 0
    assert door.place.end is None


async def test_a_task_that_was_cancelled_by_others_as_well_stays_so(door: Door) -> None:
    begun = asyncio.Event()

    async def request() -> None:
        with door.admission.ends_task(door.place):
            begun.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(request())
    await begun.wait()
    door.reason = PermissionDenied("blocked")
    door.admission.recheck()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
