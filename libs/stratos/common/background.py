"""Work that goes on after the call that began it has returned, how it ends, and how it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

_log = logging.getLogger(__name__)
PATIENCE_S = 3.0
"""A cancelled task that tidies up takes no longer; one that does has missed its cancellation."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, patience_s: float = PATIENCE_S) -> None:
    """Cancel tasks and wait until all have ended; what they raise is dropped.

    A cancellation can get lost: up to Python 3.11 ``asyncio.wait_for``, with which the Redis client sends, returns
    instead of raising where both come in one turn of the loop (gh-86296).  So what goes on is cancelled once more.
    """
    pending = ended = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=patience_s)
    await asyncio.gather(*ended, return_exceptions=True)


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait until an event is set, or the time is over.

    Args:
        event: of this event loop.
        within_s: seconds; ``None`` waits for ever.

    Returns:
        Whether it is set.
    """
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


async def gather_more(num_waiting: Callable[[], int], most: int) -> None:
    """Let a turn of the event loop pass, and further ones as long as each brings more, for one message of all.

    A message of gRPC costs more in being written than in what it carries: some 0.1 ms.

    Args:
        num_waiting: of what waits for the message.
        most: that one message takes.
    """
    before = 0
    while before < (now := num_waiting()) < most:
        before = now
        await asyncio.sleep(0)


class BackgroundTasks:
    """Open tasks of one owner, which waits for them in ``close``. Belongs to the event loop.

    The event loop refers to its tasks weakly, so a task that has no other owner may vanish before its end.
    A task that fails is logged once, under its name; its error reaches no caller.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Begin ``work``; it starts after the tasks that were spawned before it."""
        self.own(asyncio.create_task(work, name=name))

    def own(self, future: asyncio.Future[Any]) -> None:
        """Keep a future that was begun elsewhere."""
        self._open.add(future)
        future.add_done_callback(self._ended)

    def cancel(self) -> None:
        for future in list(self._open):
            future.cancel()

    async def close(self) -> None:
        """Wait until all of it has ended; nothing is cancelled, so each task must be bounded by itself."""
        while self._open:
            await asyncio.wait(set(self._open))

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._open.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
            _log.error("background work failed: %s", name, exc_info=error)
