"""Every step that a request is inside of is left, the innermost first, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stratos_gateway.answering.contract import AtEnd
from stratos_gateway.answering.entered import Entered


def failing(told: list[str], name: str) -> None:
    told.append(name)
    raise ZeroDivisionError(name)


@asynccontextmanager
async def context(told: list[str], name: str, *, suppresses: bool = False) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        told.append(f"{name} sees {error}")
        if not suppresses:
            raise
    else:
        told.append(name)


async def test_steps_are_left_in_the_reverse_order() -> None:
    told, entered = list[str](), Entered()
    entered.add(AtEnd(lambda: told.append("outer")))
    await entered.enter(context(told, "inner"))
    await entered.leave(None)
    assert told == ["inner", "outer"]


async def test_a_step_that_fails_keeps_none_of_the_others_from_its_end() -> None:
    told, entered = list[str](), Entered()
    entered.add(AtEnd(lambda: told.append("last")))
    await entered.enter(context(told, "outer"))
    entered.add(AtEnd(lambda: failing(told, "bug")))
    with pytest.raises(ZeroDivisionError):
        await entered.leave(ValueError("why"))
    assert told == ["bug", "outer sees bug", "last"]


async def test_a_suppressed_error_is_none_for_the_steps_around() -> None:
    told, entered = list[str](), Entered()
    await entered.enter(context(told, "outer"))
    await entered.enter(context(told, "inner", suppresses=True))
    await entered.leave(ValueError("why"))
    assert told == ["inner sees why", "outer"]


async def test_a_step_that_refuses_is_not_left() -> None:
    told, entered = list[str](), Entered()

    @asynccontextmanager
    async def refusing() -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    entered.add(AtEnd(lambda: told.append("outer")))
    with pytest.raises(ValueError, match="no") as raised:
        await entered.enter(refusing())
    with pytest.raises(ValueError, match="no"):
        await entered.leave(raised.value)
    assert told == ["outer"]


async def test_a_request_that_is_cancelled_as_it_leaves_a_step_still_leaves_the_others() -> None:
    told, entered, begun = list[str](), Entered(), asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            yield
        finally:
            begun.set()
            await asyncio.Event().wait()

    entered.add(AtEnd(lambda: told.append("last")))
    entered.add(AtEnd(lambda: failing(told, "bug")))
    await entered.enter(slow())
    leaving = asyncio.create_task(entered.leave(None))
    await begun.wait()
    leaving.cancel()
    with pytest.raises(ZeroDivisionError):
        await leaving
    assert told == ["bug", "last"]
