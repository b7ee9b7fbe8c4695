"""A tenant's file on its way into the object store: sealed in parts of one size, so that any range opens by itself.

    part 0 | part 1 | ... | last part | index        each: nonce || ciphertext || tag

A part opens at its own place of its own file alone, so parts can be neither exchanged nor left out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from stratos.store.data_keys import seal, unseal

PART_BYTES = 256 * 1024
"""Of the file, in each part."""
SEAL_BYTES = 28
_INDEX = "index"


def sealed_range(first_part: int, num_parts: int) -> tuple[int, int]:
    """Offset and size of whole sealed parts within their object; the last one of a file may be shorter."""
    return first_part * (PART_BYTES + SEAL_BYTES), num_parts * (PART_BYTES + SEAL_BYTES)


def open_part(key: bytes, name: str, part: int | str, sealed: bytes) -> bytes:
    """The content of one part; raises ``BrokenSeal``."""
    return unseal(key, sealed, _place(name, part))


def open_index(key: bytes, name: str, sealed: bytes) -> bytes:
    """The index behind the last part; raises ``BrokenSeal``."""
    return open_part(key, name, _INDEX, sealed)


class FileWriter:
    """Writes one file to the local disk, in any thread; the disk has it until the context ends.

    Args:
        key: of the tenant.
        name: id of the file and its tenant.
    """

    def __init__(self, key: bytes, name: str) -> None:
        self._key = key
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="stratos-file-")
        self.path = Path(self._folder.name) / "sealed"
        self._out = self.path.open("wb")
        self._buffer = bytearray()
        self._num_parts = 0
        self.num_bytes = 0
        """Of the file."""
        self.index_bytes = 0
        """Sealed, behind the last part."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.close()
        self._folder.cleanup()

    @property
    def num_stored(self) -> int:
        """Bytes of the object so far."""
        return self._out.tell()

    def write(self, data: bytes) -> None:
        """Append to the file; raises ``OSError``."""
        self.num_bytes += len(data)
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            self._seal(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def finish(self, index: bytes = b"") -> None:
        """Write what is left, and what is kept beside the file; raises ``OSError``."""
        if self._buffer:
            self._seal(bytes(self._buffer))
            self._buffer.clear()
        if index:
            sealed = seal(self._key, index, _place(self._name, _INDEX))
            self._out.write(sealed)
            self.index_bytes = len(sealed)
        self._out.flush()

    def _seal(self, content: bytes) -> None:
        self._out.write(seal(self._key, content, _place(self._name, self._num_parts)))
        self._num_parts += 1


def _place(name: str, part: int | str) -> bytes:
    return f"file {name} part {part}".encode()
