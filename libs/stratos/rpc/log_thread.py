"""Log lines written by a thread of their own: stderr that nothing reads stops no stream.

The event loop hands records over and goes on.  A bounded number of them waits; what comes beyond is counted, as is what
cannot be written (a full disk), and the count is a line of its own once lines can be written again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

MAX_WAITING = 8192
"""Records that wait at most, some megabytes."""
_PAUSE_S = 0.02
"""Between the last line that waited and a look for further ones."""
_CLOSE_TIMEOUT_S = 1.0
"""Longest time for which the end of a process waits for stderr."""


class LogThread(logging.Handler):
    """Hands records to a handler in a thread.

    Args:
        target: writes them, and may block.
        max_waiting: records that wait at most.
    """

    def __init__(self, target: logging.Handler, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self._num_without_room = self._num_failed = 0
        self._num_told = 0
        self._is_telling = self._is_told = False
        self._target, self._show_error = target, target.handleError
        target.handleError = self._note_failure  # type: ignore[method-assign] # it would say so on the same stderr
        self._max_waiting = max_waiting
        self._waiting: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits; a fork of the process, which has no such thread, writes by itself."""
        if os.getpid() != self._pid:
            self._target.handle(record)
        elif self._waiting.qsize() >= self._max_waiting:
            self._num_without_room += 1
        else:
            with suppress(Exception):  # the thread shows what is wrong with it
                record.msg, record.args = record.getMessage(), None  # its arguments may change before it is written
            self._waiting.put(record)

    def close(self) -> None:
        """Write what waits, for a bounded time."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)
        super().close()

    @property
    def num_lost(self) -> int:
        """Records so far that found no room, or that could not be written; never fewer than before."""
        return self._num_without_room + self._num_failed

    def _note_failure(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):  # a fault of the record or of its formatter
            with suppress(OSError, ValueError):  # a stderr that is closed
                self._show_error(record)
        elif self._is_telling:
            self._is_told = False
        else:
            self._num_failed += 1

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._target.handle(record)
            self._tell_lost()
            if self._waiting.empty():
                time.sleep(_PAUSE_S)  # lines that come in between wake no thread, which would take the lock

    def _tell_lost(self) -> None:
        if (num_lost := self.num_lost) > self._num_told:
            text = f"{num_lost - self._num_told} log lines were lost: stderr is read too slowly, or takes nothing"
            self._is_telling = self._is_told = True
            self._target.handle(logging.makeLogRecord({"name": __name__, "levelno": logging.WARNING,
                "levelname": "WARNING", "msg": text}))  # fmt: skip
            self._is_telling = False
            if self._is_told:  # else it is said again with the next line
                self._num_told = num_lost


@contextmanager
def log_by_thread() -> Iterator[None]:
    """Inside, records of the process are written by a thread."""
    root = logging.getLogger()
    direct = list(root.handlers)
    threads = [LogThread(handler) for handler in direct]
    root.handlers[:] = threads
    try:
        yield
    finally:
        root.handlers[:] = direct
        for thread in threads:
            thread.close()


def num_lost_lines() -> int:
    """Lines that this process has lost so far."""
    return sum(handler.num_lost for handler in logging.getLogger().handlers if isinstance(handler, LogThread))
