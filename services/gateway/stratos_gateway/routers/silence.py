"""Silence of a router, as far as it is the router's: time in which this process was held up does not count.

On a slow machine answers come late and so does everything here, so silence is counted in short slices of which each
counts once, however long it took.  On a healthy machine they add up to what a clock says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

SLICES = 15
PATIENCE = 10.0
"""A call that was given up here ends at the latest after so many times the silence, so that none is left behind."""


async def answer_within(call: Awaitable[bool], silence_s: float) -> bool:
    """The answer to a call; false when it does not come within ``silence_s`` in which this process was running."""
    task = asyncio.ensure_future(call)
    try:
        for _ in range(SLICES):
            done, _ = await asyncio.wait({task}, timeout=silence_s / SLICES)
            if done:
                return task.result()
        return False
    finally:
        task.cancel()
