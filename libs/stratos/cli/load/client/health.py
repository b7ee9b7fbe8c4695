"""Whether the client kept up: how late its event loop was, and how busy its process."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stratos.cli.load.measured import ClientHealth

INTERVAL_S = 0.05


@asynccontextmanager
async def watched_client(now: Callable[[], float]) -> AsyncIterator[ClientHealth]:
    """Watch the client while the block runs; its figures are whole at the end."""
    health = ClientHealth()
    watch = asyncio.create_task(_watch(health, now))
    began_s, cpu_s = now(), time.process_time()
    try:
        yield health
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        health.duration_s, health.cpu_s = now() - began_s, time.process_time() - cpu_s


async def _watch(health: ClientHealth, now: Callable[[], float]) -> None:
    while True:
        due_s = now() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        health.loop_delays_s.append(max(0.0, now() - due_s))


def allow_sockets() -> None:
    """Allow as many open files as the system gives this process: each stream is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
