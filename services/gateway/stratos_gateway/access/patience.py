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
    has_ended, found = begin(work)
    if has_ended:
        return found  # type: ignore[no-any-return]
    async with asyncio.timeout(timeout_s):
        return await rest(work, found)


def begin(work: Coroutine[Any, Any, T]) -> tuple[bool, Any]:
    """Run a coroutine until it waits or ends: whether it has ended, and its result, or what it waits for."""
    try:
        return False, work.send(None)
    except StopIteration as end:
        return True, end.value


@types.coroutine
def rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
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
