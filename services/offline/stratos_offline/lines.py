"""The file of a job: checked as the API checks an upload, and read by line number afterwards."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratos.common.errors import BadRequest
from stratos_gateway.batches.prefixes import prefix_key
from stratos_gateway.files.lines import LineCheck

MAX_LINES = 10_000_000
_CHUNK_BYTES = 1 << 20


class LineFile:
    """A file whose lines are all requests for one endpoint: some 40 bytes of memory a line.

    Args:
        path: of the file.

    Raises:
        BadRequest: a line is no request, or the file has none; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends = array("Q")
        self.keys = bytearray()
        """A key of each line, see ``prefixes``."""
        self.digest = ""
        self.models: list[str] = []
        self.endpoint = ""
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise BadRequest(f"{path} is no regular file, and lines are read again by their places", param="file")
            with ExitStack() as stack:
                self._file = stack.enter_context(path.open("rb"))
                self._state = self._state_now()
                self._check()
                stack.pop_all()
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror or error}", param="file") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._ends[-1]

    def line(self, number: int) -> bytes:
        """One line without its line feed."""
        begin, end = self._ends[number - 1] if number else 0, self._ends[number]
        return os.pread(self._file.fileno(), end - begin, begin).rstrip(b"\n")

    def check_unchanged(self) -> None:
        """Raise ``BadRequest`` where it was written to since it was checked: lines may not be what was checked."""
        if self._state_now() != self._state:
            raise BadRequest(f"{self._path} changed while it was read", param="file")

    def _state_now(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _check(self) -> None:
        check, digest = LineCheck(MAX_LINES, note=self._note), hashlib.blake2b(digest_size=20)
        while chunk := self._file.read(_CHUNK_BYTES):
            digest.update(chunk)
            check.feed(chunk)
        check.finish()
        self.digest, self.models = digest.hexdigest(), check.facts["models"]
        if len(urls := check.facts["urls"]) != 1:
            text = f"lines of the file are for {', '.join(urls)}; they must all be for one endpoint"
            raise BadRequest(text, param="endpoint", code="mismatched_endpoint")
        self.endpoint = urls[0]

    def _note(self, value: dict[str, Any], size: int) -> None:
        self._ends.append(size + (self._ends[-1] if self._ends else 0))
        self.keys += prefix_key(value["body"])
