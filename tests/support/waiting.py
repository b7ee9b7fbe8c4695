"""Waiting for what other tasks, threads and processes do, where nothing signals it.

No wait has a bound of its own: how long a thing takes is the machine's. What never happens is ended by the limit that
every test has (``timeout`` in pyproject.toml), and the wait that it ends prints its name. What takes luck is tried in
``rounds``, which end before that limit. A bound that is a promise to users is measured instead, by a test of its own:
see ``tests.support.promises``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LIMIT_S = 300.0
"""Of a test (``timeout`` in pyproject.toml): no client gives up before it, and no wait ends."""
ROUNDS_S = 0.8 * LIMIT_S
"""Time in which rounds begin: the last one has to end before the test does."""
MAX_PAUSE_S, REST = 0.25, 9
"""At most a tenth of a processor looks: what is waited for needs it, and a look costs those that are asked, too."""


async def eventually(
    condition: Callable[[], Any],
    what: str = "the condition",
    *,
    timeout_s: float | None = None,
    poll_s: float = 0.002,
) -> None:
    """Return once ``condition()`` is truthy; it may be a coroutine function.

    Raises:
        AssertionError: it was not within ``timeout_s``, where one is given; names ``what``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            begun = time.monotonic()
            while not await _value(condition):
                await asyncio.sleep(_pause_s(begun, poll_s))
                begun = time.monotonic()
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None
    except asyncio.CancelledError:
        print(f"waited for {what}", file=sys.stderr)
        raise


async def while_running(running: Sequence[asyncio.Task[Any]], condition: Callable[[], Any], what: str) -> bool:
    """Wait until ``condition()`` is truthy while tasks run; ``False`` where all of them ended before it was.

    Raises:
        Exception: that of a task, without which the condition may never be true.
    """
    found: list[Any] = []

    async def is_known() -> bool:
        ended = [task for task in running if task.done()]
        for task in ended:
            task.result()  # raises what ended it
        found[:] = [await _value(condition)]
        return bool(found[0]) or len(ended) == len(running)

    await eventually(is_known, what)
    return bool(found[0])


def rounds(what: str, limit_s: float = ROUNDS_S, *, now: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Numbers of rounds, until the caller has seen what it needs and leaves them.

    Raises:
        AssertionError: none that began within ``limit_s`` showed it; names ``what``.
    """
    since, number = now(), 0
    while number == 0 or now() - since < limit_s:
        yield number
        number += 1
    raise AssertionError(f"not in {number} rounds within {limit_s:g} s: {what}")


async def _value(condition: Callable[[], Any]) -> Any:
    found = condition()
    return await found if inspect.isawaitable(found) else found


def wait_until(condition: Callable[[], Any], what: str = "the condition", *, timeout_s: float | None = None) -> Any:
    """Poll until ``condition()`` is truthy; returns its value.

    Raises:
        AssertionError: it was not within ``timeout_s``, where one is given; names ``what``.
    """
    begun = since = time.monotonic()
    while not (value := condition()):
        assert timeout_s is None or time.monotonic() - since < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(_pause_s(begun, 0.02))
        begun = time.monotonic()
    return value


def _pause_s(begun: float, at_least_s: float) -> float:
    """``REST`` times as long as looking took."""
    return max(at_least_s, min(REST * (time.monotonic() - begun), MAX_PAUSE_S))
