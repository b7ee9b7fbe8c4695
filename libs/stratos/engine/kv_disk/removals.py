"""Files that are to be removed, and callers that wait until they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from stratos.engine.kv_disk.block_folder import BlockFolder
from stratos.engine.kv_disk.disk_index import DiskIndex


class Removals:
    """Queue of the writer thread, which alone calls ``next``; everything else is guarded by the core's lock.

    A block's file is (hash, folder of its tenant); a hash of ``None`` is all that the folder has.
    """

    def __init__(
        self, index: DiskIndex, folder: BlockFolder, changing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._index, self._folder, self._changing = index, folder, changing
        self._files: deque[tuple[bytes | None, str]] = deque()
        self._waiters: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._files or self._waiters)

    def add(self, files: Iterable[tuple[bytes | None, str]]) -> None:
        """Let files be removed after those that wait."""
        self._files.extend(files)

    def when_done(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called, by the writer thread, once what waits now is gone, a loss of power included."""
        self._waiters.append(tell)

    def next(self) -> bool:
        """Remove the next file; where there is none, tell those that wait. Returns whether there was one."""
        with self._changing():
            if not self._files:
                told, self._waiters = self._waiters, []
            else:
                block_hash, folder = self._files.popleft()
                is_back = block_hash is not None and self._index.folder_of(block_hash) == folder
                if block_hash is None and self._index.drop_hidden(folder):
                    self._files.appendleft((None, folder))  # the rest, after others had the lock
                    return True
                told = None
        if told is None:
            if block_hash is None:
                self._folder.remove_tenant(folder)
            elif not is_back:
                self._folder.remove(block_hash, folder)
            return True
        if told:
            self._folder.keep_removed()
        for tell in told:
            tell()
        return False
