"""Files that are to be removed, and callers that wait until they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class Removals:
    """Queue of the writer thread. Guarded by the core's lock.

    A block's file is (hash, folder of its tenant); a hash of ``None`` is all that the folder has.
    """

    def __init__(self) -> None:
        self._files: deque[tuple[bytes | None, str]] = deque()
        self._waiters: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._files or self._waiters)

    def add(self, files: Iterable[tuple[bytes | None, str]]) -> None:
        """Let files be removed after those that wait."""
        self._files.extend(files)

    def pop(self) -> tuple[bytes | None, str] | None:
        """The next one; where there is none, those that waited for it are told."""
        if self._files:
            return self._files.popleft()
        told, self._waiters = self._waiters, []
        for tell in told:
            tell()
        return None

    def put_back(self, folder: str) -> None:
        """The folder is not done: it comes next."""
        self._files.appendleft((None, folder))

    def when_done(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called, by the writer thread, once it has removed all that waits now."""
        self._waiters.append(tell)
