"""Daemon threads for calls that block in native code and cannot be cancelled.

Unlike an executor's, these threads do not hold up the end of the process while a call waits for a stopped peer.  But a
native call that *returns* while the interpreter ends would abort the process: ``close`` and await it before the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class BlockingThreads:
    """Up to ``max_threads`` threads, started on demand. Made for, and used from, the running event loop.

    The caller bounds the number of open calls; more than ``max_threads`` wait for one another.
    """

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_open = 0
        self._num_running = 0
        self._closed: asyncio.Future[None] | None = None

    def submit(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``call(*args)`` in a thread; cancelling the future does not stop it."""
        if self._closed is not None:
            raise RuntimeError(f"the threads {self._name} are closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._num_open += 1
        self._calls.put(lambda: self._run(future, call, args))
        if self._num_open > len(self._threads) < self._max_threads:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            self._num_running += 1
            thread.start()
        return future

    def close(self) -> asyncio.Future[None]:
        """Let the threads end after the calls that were submitted; the future is done when they have."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            if not self._num_running:
                self._closed.set_result(None)
            for _ in self._threads:
                self._calls.put(None)
        return self._closed

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it refers to must not live until the next one
        self._tell(self._thread_ended)

    def _run(self, future: asyncio.Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call(*args)
        except Exception as err:  # the boundary of a thread: the awaiting task gets it
            error = err
        self._tell(self._call_ended, future, result, error)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(callback, *args)

    def _call_ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._num_open -= 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _thread_ended(self) -> None:
        self._num_running -= 1
        if self._closed is not None and not self._num_running and not self._closed.done():
            for thread in self._threads:
                thread.join()  # at once: telling us was the last thing it did
            self._closed.set_result(None)
