"""Silence of a router, as far as it is the router's: time in which this process was held up does not count.

On a slow machine answers come late and so does everything here, so silence is measured in short slices.  One that took
more than twice its time was this process's fault and counts for no more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

SLICES = 15
PATIENCE = 10.0
"""A call that was given up here ends at the latest after so many times the silence, so that none is left behind."""


async def answer_within(call: Awaitable[bool], silence_s: float) -> bool:
    """The answer to a call; false when it does not come within ``silence_s`` in which this process was running."""
    task, loop = asyncio.ensure_future(call), asyncio.get_running_loop()
    slice_s, silent_s = silence_s / SLICES, 0.0
    try:
        while silent_s < silence_s:
            began_s = loop.time()
            done, _ = await asyncio.wait({task}, timeout=slice_s)
            if done:
                return task.result()
            silent_s += min(loop.time() - began_s, 2 * slice_s)
        return False
    finally:
        task.cancel()
