"""Threads that encode long texts beside an event loop.

``asyncio.to_thread`` copies the context, makes a future for each side and tells the one of the other: by that a long
prompt costs the event loop's thread some 0.1 ms more than by a queue and one future.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
_END_S = 5.0
"""A thread that encodes as the process ends is waited for so long."""


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]
    settle: Callable[..., None]


_Jobs = SimpleQueue[_Job | None]


class EncodingThreads:
    """Belongs to the event loop; threads begin when they are needed, and end with their owner or the process.

    Args:
        most: threads; ``None`` takes as many as ``asyncio.to_thread`` does.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most or min(32, (os.cpu_count() or 1) + 4)
        self._jobs: _Jobs = SimpleQueue()
        self._threads: list[Thread] = []
        self._num_open = 0
        weakref.finalize(self, _end, self._jobs, self._threads)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do some work in a thread, without the context of its caller; what it raises is the future's.

        Work that is cancelled before a thread has come to it is not done.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._num_open += 1
        if len(self._threads) < min(self._num_open, self._most):
            thread = Thread(target=_work, args=(self._jobs,), name="encoding", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(_Job(loop, future, work, self._settle))
        return future

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._num_open -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        result, error = (None, None) if job.future.cancelled() else _done(job.work)
        with suppress(RuntimeError):  # that loop was closed
            job.loop.call_soon_threadsafe(job.settle, job.future, result, error)
        del job, result, error  # they know the text, and the owner


def _done(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error


def _end(jobs: _Jobs, threads: list[Thread]) -> None:
    """Let threads end; none is at work while its owner goes, as what is at work knows it."""
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not current_thread():  # which may have had the last job
            thread.join(_END_S)
