"""The end of what a task awaits, called from outside of it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class TaskEnd:
    """Inside of ``with`` the current task can be ended with an error, which is raised where the block ends.

    A task of its own around the work would do as well, and costs each request one.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "made by the task that is to be ended"
        self._task = task
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
