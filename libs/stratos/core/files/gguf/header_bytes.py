"""Bytes of a header, taken in order: never past the end of the file, never more than a header may have."""

from __future__ import annotations

import struct
from typing import IO

from stratos.common.errors import InvalidCheckpoint

MAX_HEADER_BYTES = 64 * 1024 * 1024
"""Bound of what is kept of a file in memory; the vocabularies of published models take a tenth of it."""


class HeaderBytes:
    """Reads from the beginning of an open file.

    Args:
        file: at its first byte, buffered.
        name: of the file, for messages.
        size: of the file.
    """

    def __init__(self, file: IO[bytes], name: str, size: int) -> None:
        self.name, self.position = name, 0
        self._file, self._end = file, min(size, MAX_HEADER_BYTES)
        self._is_bounded = size > MAX_HEADER_BYTES

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self._end - self.position

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            InvalidCheckpoint: there are not so many.
        """
        if count > self.left:
            raise InvalidCheckpoint(
                f"{self.name}: its header has more than {MAX_HEADER_BYTES} bytes"
                if self._is_bounded
                else f"{self.name} is truncated: its header goes on after its end"
            )
        content = self._file.read(count)
        if len(content) != count:
            raise InvalidCheckpoint(f"{self.name} became shorter while it was read")
        self.position += count
        return content

    def u32(self) -> int:
        """A number of 4 bytes."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """A number of 8 bytes."""
        return int.from_bytes(self.take(8), "little")

    def number(self, layout: struct.Struct) -> int | float | bool:
        """A number of any layout."""
        (value,) = layout.unpack(self.take(layout.size))
        assert isinstance(value, int | float)
        return value

    def text(self, what: str) -> str:
        """A text, whose length stands before it; ``what`` names it in messages."""
        try:
            return self.take(self.u64()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidCheckpoint(f"{self.name}: {what} is no UTF-8") from error
