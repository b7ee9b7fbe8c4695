"""Steps around a request as its endpoint goes through them, for tests of single steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos_gateway.answering.contract import Around, AtEnd
from stratos_gateway.answering.entered import Entered


@asynccontextmanager
async def inside(*steps: Around) -> AsyncIterator[None]:
    """Go into steps, the outermost first, and leave them as the block ends."""
    entered = Entered()
    error: BaseException | None = None
    try:
        for step in steps:
            if isinstance(step, AtEnd):
                entered.add(step)
            else:
                await entered.enter(step)
        yield
    except BaseException as raised:
        error = raised
    await entered.leave(error)
