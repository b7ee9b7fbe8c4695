"""Waiting for what other tasks, threads and processes do, where nothing signals it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 20.0
"""For what must happen; never waited for in a green run."""
MAX_PAUSE_S = 0.25


async def eventually(
    condition: Callable[[], Any], what: str = "the condition", *, timeout_s: float = TIMEOUT_S, poll_s: float = 0.002
) -> None:
    """Return once ``condition()`` is truthy; it may be a coroutine function.

    Raises:
        AssertionError: it was not within ``timeout_s``; names ``what``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            begun = time.monotonic()
            while not await _value(condition):
                await asyncio.sleep(_pause_s(begun, poll_s))
                begun = time.monotonic()
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
    begun = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(_pause_s(begun, 0.02))
        begun = time.monotonic()
    return value


def _pause_s(begun: float, at_least_s: float) -> float:
    """Three times as long as looking took: what is waited for needs the processor that looking takes."""
    return max(at_least_s, min(3 * (time.monotonic() - begun), MAX_PAUSE_S))
