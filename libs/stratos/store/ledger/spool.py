"""Entries on disk while Redis is away: one line each, fsynced, written again once Redis is back.

A line is there whole or not at all: what a full disk cut short is taken back, and what a death cut short is cut off at
the next start, since its entry was told to no one as kept.  A line that was written again and is still there, because
the process died in between, does no harm: the ledger takes each request once.  Two processes must not share a file, so
it is locked.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.core.ledger.entry import LedgerEntry, entry_from_text, entry_to_text

_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SpoolSlice:
    """Some lines of the file, from an offset on."""

    entries: Sequence[LedgerEntry]
    end: int
    """Offset of what follows them."""
    num_unreadable: int
    """Lines that are no entries: a disk or a hand changed them."""


class Spool:
    """One file, mode 0600. Its methods block: call them in a thread.

    Args:
        path: of the file; its folder is made.
        max_bytes: beyond this nothing is taken.

    Raises:
        BadRequest: another process has the file.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        """A process that ends leaves the thread of its last turn; two descriptors of a file share their place in it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise BadRequest(f"{path} belongs to another process", param="ledger.spool_path") from None
        self._end = _end_of_lines(self._fd)
        """Where the last whole line ends; what lies behind it was never kept."""
        self.num_torn = int(os.fstat(self._fd).st_size > self._end)
        """Lines that the last process did not finish."""
        self._cut()

    @property
    def num_bytes(self) -> int:
        """Bytes that wait."""
        return self._end

    def append(self, entries: Iterable[LedgerEntry]) -> bool:
        """Keep entries durably, all or none; ``False`` where there is no room for them.

        Raises:
            OSError: the disk does not take them; none is kept.
        """
        data = b"".join(_line(entry) for entry in entries)
        with self._lock:
            if self._end + len(data) > self._max_bytes:
                return False
            try:
                self._cut()  # an earlier failure may have left something that could not be taken back then
                _write_all(self._fd, data)
                os.fsync(self._fd)
            except OSError:
                self._cut()
                raise
            self._end += len(data)
        return True

    def read(self, offset: int, max_lines: int) -> SpoolSlice:
        """Lines from ``offset`` on, which is 0 or the end of another slice."""
        lines: list[bytes] = []
        with self._lock, os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(offset)
            while offset < self._end and len(lines) < max_lines:
                lines.append(file.readline())
                offset += len(lines[-1])
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        return SpoolSlice(entries, offset, len(lines) - len(entries))

    def clear(self, end: int) -> bool:
        """Everything up to ``end`` is in the ledger; ``False`` where more has come since, which stays with the rest."""
        with self._lock:
            if self._end != end:
                return False
            self._end = 0
            self._cut()
            os.fsync(self._fd)
        return True

    def close(self) -> None:
        """Give the file up; what waits stays, and what comes is refused."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1

    def _cut(self) -> None:
        if os.fstat(self._fd).st_size > self._end:
            os.ftruncate(self._fd, self._end)


def _write_all(fd: int, data: bytes) -> None:
    """A nearly full disk takes the head of what is written and refuses at the next call."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _end_of_lines(fd: int) -> int:
    """Offset behind the last line break."""
    end = os.fstat(fd).st_size
    while end:
        begin = max(0, end - _TAIL_BYTES)
        if (found := os.pread(fd, end - begin, begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


def _line(entry: LedgerEntry) -> bytes:
    value = {"id": entry.request_id, "tenant": entry.tenant, "entry": entry_to_text(entry)}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _entry(line: bytes) -> LedgerEntry | None:
    try:
        value = json.loads(line)
        return entry_from_text(value["id"], value["tenant"], value["entry"])
    except (ValueError, KeyError, TypeError):
        return None
