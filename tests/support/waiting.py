"""Waiting for what other tasks, threads and processes do, where nothing signals it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 20.0
"""For what must happen; never waited for in a green run."""


async def eventually(
    condition: Callable[[], Any], what: str = "the condition", *, timeout_s: float = TIMEOUT_S, poll_s: float = 0.002
) -> None:
    """Return once ``condition()`` is truthy; it may be a coroutine function.

    Raises:
        AssertionError: it was not within ``timeout_s``; names ``what``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await _value(condition):  # noqa: ASYNC110 - conditions of many kinds
                await asyncio.sleep(poll_s)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None


async def _value(condition: Callable[[], Any]) -> Any:
    found = condition()
    return await found if inspect.isawaitable(found) else found


def wait_until(condition: Callable[[], Any], what: str = "the condition", *, timeout_s: float = 30.0) -> Any:
    """Poll until ``condition()`` is truthy; returns its value.

    Raises:
        AssertionError: it was not within ``timeout_s``; names ``what``.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return value
