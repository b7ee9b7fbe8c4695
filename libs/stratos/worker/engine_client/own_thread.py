"""A thread for one call, which is gone afterwards with everything that the runtime keeps for a thread.

An engine is loaded in one.  Loading computes in parallel, and OpenMP keeps the loading thread's team of threads for as
long as that thread lives; with more such threads than cores, every operation of the step loop ends by sleeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_in_own_thread(function: Callable[..., T], *args: object) -> T:
    """``function(*args)`` in a thread that ends with the call."""
    pool = ThreadPoolExecutor(1, "one-call")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)
    finally:
        pool.shutdown(wait=False)
