"""The end of what a task awaits, called from outside of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class TaskEnd:
    """Inside of ``with`` the current task can be ended with an error, which is raised where the block ends.

    A task of its own around the work would do as well, and costs each request one.
    """

    __slots__ = ("_error", "_is_over", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "made by the task that is to be ended"
        self._task: asyncio.Task[Any] = task
        self._error: Exception | None = None
        self._is_over = False

    def __call__(self, error: Exception) -> None:
        """End it, unless the block is over or ends already; quick."""
        if self._error is None and not self._is_over:
            self._error = error
            self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._error is None:
            return
        is_cancelled_by_others = self._task.uncancel() > 0
        if isinstance(error, asyncio.CancelledError) and not is_cancelled_by_others:
            raise self._error from None


class EndsLate(TaskEnd):
    """Inside of ``with`` what the current task awaits ends when its time is over, as within ``asyncio.timeout``; that
    takes an object, two coroutines and an exception more.

    Args:
        timeout_s: seconds from the beginning of the block; ``None`` is for ever.
        make_error: makes what is raised then; called at that moment.
    """

    __slots__ = ("_make_error", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float | None, make_error: Callable[[], Exception]) -> None:
        super().__init__()
        self._timeout_s, self._make_error = timeout_s, make_error
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._timeout_s), self._end)
        return self

    def _end(self) -> None:
        self(self._make_error())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().__exit__(kind, error, trace)
