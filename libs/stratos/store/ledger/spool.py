"""Entries on disk while Redis is away: one line each, fsynced, written again once Redis is back.

A line that was written again and is still there, because the process died in between, does no harm: the ledger takes
each request once.  Two processes must not share a file, so it is locked.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.core.ledger.entry import LedgerEntry, entry_from_text, entry_to_text


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
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise BadRequest(f"{path} belongs to another process", param="ledger.spool_path") from None
        self._end_torn_line()

    @property
    def num_bytes(self) -> int:
        """Bytes that wait."""
        return os.fstat(self._fd).st_size

    def append(self, entries: Iterable[LedgerEntry]) -> bool:
        """Keep entries durably; ``False`` where there is no room for them."""
        data = b"".join(_line(entry) for entry in entries)
        if self.num_bytes + len(data) > self._max_bytes:
            return False
        os.write(self._fd, data)
        os.fsync(self._fd)
        return True

    def read(self) -> Sequence[LedgerEntry]:
        """Everything that waits; a line that cannot be read is left out."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            return [entry for line in file if (entry := _entry(line)) is not None]

    def clear(self) -> None:
        """Everything is in the ledger."""
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)

    def close(self) -> None:
        """Give the file up; what waits stays."""
        os.close(self._fd)

    def _end_torn_line(self) -> None:
        """A process that died while it wrote left half a line: the next one must not be glued to it."""
        size = self.num_bytes
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")


def _line(entry: LedgerEntry) -> bytes:
    value = {"id": entry.request_id, "tenant": entry.tenant, "entry": entry_to_text(entry)}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _entry(line: bytes) -> LedgerEntry | None:
    try:
        value = json.loads(line)
        return entry_from_text(value["id"], value["tenant"], value["entry"])
    except (ValueError, KeyError, TypeError):
        return None
