"""Bounded waits that cost no timer where nothing waits, as nearly always: a body that has come, a client that reads."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Do some work, which may wait for so long from now on; raises ``TimeoutError``.

    A timer is a tenth of what a chunk costs.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    async with asyncio.timeout(timeout_s):
        return await _rest(work, awaited)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Run a coroutine to its end that has begun and waits for ``awaited``."""
    while True:
        try:
            found = yield awaited
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, found)
        try:
            awaited = step()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
