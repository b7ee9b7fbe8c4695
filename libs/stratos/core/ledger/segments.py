"""Segments of the ledger: files of entries that are only ever added, and a chain of digests through them.

    block    a gzip member: lines of one tenant, by time of arrival and id
    ...
    index    the last gzip member: {"segment": 1, "number": ..., "previous": ..., "lines": ..., "days": ...,
             "blocks": [[tenant, first ms, last ms, offset, bytes, lines, digest], ...]}

    line     {"ms": ..., "id": ..., "tenant": ..., "entry": ...}        an entry as the store had it
             {..., "corrects": ..., "in": number of a segment}          in the place of one that an earlier segment has

The digest of a segment is that of its index, which has the digests of its blocks and the name of the segment before:
so every read is checked, and the name of the last segment stands for all of them.  A block is found and read alone.
Totals are entries less what they correct.  ``zcat`` shows a whole segment as lines.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from stratos.core.ledger.entry import LedgerEntry, day_of, entry_from_text, measures_from_text

BLOCK_LINES = 256
FOLDER = "ledger/segments"
HEAD_KEY = "ledger/head"
"""The object that has the name of the last segment, for the day on which Redis is lost."""
_VERSION = 1
_LEVEL = 6
Place = tuple[int, str]
"""Order of entries: milliseconds of arrival, request id."""


class BrokenSegment(ValueError):
    """A segment, or a part of one, is not what was written."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Name of a segment, by which its content is known."""

    number: int
    """From 0 on."""
    digest: str
    """SHA-256 of its index, hexadecimal."""
    num_bytes: int
    index_bytes: int
    """Bytes of the index, at the end."""

    @property
    def key(self) -> str:
        """Name of the object: two segments of one number never overwrite each other."""
        return f"{FOLDER}/{self.number:010}-{self.digest[:32]}.jsonl.gz"

    @property
    def text(self) -> str:
        """Text that the next segment has."""
        return f"{self.number} {self.digest} {self.num_bytes} {self.index_bytes}"


def parse_ref(text: str) -> SegmentRef:
    """The way back; raises ``BrokenSegment``."""
    try:
        number, digest, num_bytes, index_bytes = text.split(" ")
        return SegmentRef(int(number), digest, int(num_bytes), int(index_bytes))
    except ValueError:
        raise BrokenSegment(f"{text[:64]!r} is no name of a segment") from None


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """One entry, new or in the place of another one."""

    arrived_ms: int
    request_id: str
    tenant: str
    text: str
    """The entry as the store has it."""
    corrects: str = ""
    """The entry in whose place it is; "" for none."""
    corrected_in: int = -1
    """Number of the segment that has that one."""

    @property
    def place(self) -> Place:
        """Where it stands among all of its tenant."""
        return self.arrived_ms, self.request_id

    @property
    def entry(self) -> LedgerEntry:
        """Raises ``BrokenSegment``."""
        try:
            return entry_from_text(self.request_id, self.tenant, self.text)
        except ValueError as error:
            raise BrokenSegment(str(error)) from None

    @property
    def measures(self) -> Counter[str]:
        """Numbers that the line adds to the sums; some may be negative. Raises ``BrokenSegment``."""
        try:
            total = Counter(measures_from_text(self.text))
            if self.corrects:
                total.subtract(measures_from_text(self.corrects))
        except ValueError as error:
            raise BrokenSegment(str(error)) from None
        return total


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of one tenant."""

    tenant: str
    first_ms: int
    last_ms: int
    offset: int
    num_bytes: int
    num_lines: int
    digest: str


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """Contents of a segment, and its place in the chain."""

    number: int
    previous: SegmentRef | None
    num_lines: int
    days: tuple[str, ...]
    blocks: tuple[Block, ...]


class SegmentWriter:
    """Writes one segment.

    Args:
        file: at its beginning.
        previous: the segment before; ``None`` for the first one.
    """

    def __init__(self, file: BinaryIO, previous: SegmentRef | None) -> None:
        self._file = file
        self._number = 0 if previous is None else previous.number + 1
        self._previous = previous
        self._lines: list[SegmentLine] = []
        self._blocks: list[Block] = []
        self._days: set[str] = set()
        self._num_bytes = 0
        self.num_lines = 0

    @property
    def days(self) -> list[str]:
        """Days that have a line, in order."""
        return sorted(self._days)

    def add(self, lines: Sequence[SegmentLine]) -> None:
        """Append lines, those of a tenant in their order."""
        for line in lines:
            if self._lines and (len(self._lines) == BLOCK_LINES or self._lines[-1].tenant != line.tenant):
                self._flush()
            self._lines.append(line)

    def end(self) -> SegmentRef:
        """Append the index."""
        self._flush()
        value = {
            "segment": _VERSION,
            "number": self._number,
            "previous": "" if self._previous is None else self._previous.text,
            "lines": self.num_lines,
            "days": self.days,
            "blocks": [list(asdict(block).values()) for block in self._blocks],
        }
        data = _member([value])
        self._write(data)
        return SegmentRef(self._number, hashlib.sha256(data).hexdigest(), self._num_bytes, len(data))

    def _flush(self) -> None:
        if not self._lines:
            return
        first, last = self._lines[0], self._lines[-1]
        data = _member([_value(line) for line in self._lines])
        digest = hashlib.sha256(data).hexdigest()
        block = Block(
            first.tenant, first.arrived_ms, last.arrived_ms, self._num_bytes, len(data), len(self._lines), digest
        )
        self._blocks.append(block)
        self._days |= {day_of(line.arrived_ms) for line in self._lines}
        self.num_lines += len(self._lines)
        self._write(data)
        self._lines = []

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._num_bytes += len(data)


def read_index(ref: SegmentRef, data: bytes) -> SegmentIndex:
    """The index of a segment from its bytes.

    Raises:
        BrokenSegment: they are not those that ``ref`` names.
    """
    if len(data) < ref.index_bytes:
        raise BrokenSegment("it ends early")
    if hashlib.sha256(data).hexdigest() != ref.digest:
        raise BrokenSegment("its index is not the one that was written")
    (value,) = _values(data)
    try:
        if value["segment"] != _VERSION:
            raise BrokenSegment(f"a segment of version {value['segment']}")
        previous = parse_ref(value["previous"]) if value["previous"] else None
        blocks = tuple(Block(*block) for block in value["blocks"])
        return SegmentIndex(value["number"], previous, value["lines"], tuple(value["days"]), blocks)
    except (KeyError, TypeError) as error:
        raise BrokenSegment(f"its index cannot be read: {error}") from None


def read_block(block: Block, data: bytes) -> list[SegmentLine]:
    """The lines of a block from its bytes.

    Raises:
        BrokenSegment: they are not those that were written.
    """
    if hashlib.sha256(data).hexdigest() != block.digest:
        raise BrokenSegment(f"lines of {block.tenant} at byte {block.offset} are not those that were written")
    return [_line(value) for value in _values(data)]


def _member(values: Sequence[dict[str, Any]]) -> bytes:
    text = "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
    return gzip.compress(text.encode(), _LEVEL, mtime=0)


def _values(data: bytes) -> Iterator[dict[str, Any]]:
    try:
        return iter([json.loads(line) for line in gzip.decompress(data).splitlines()])
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise BrokenSegment(f"it cannot be read: {error}") from None


def _value(line: SegmentLine) -> dict[str, Any]:
    value = {"ms": line.arrived_ms, "id": line.request_id, "tenant": line.tenant, "entry": line.text}
    return value | ({"corrects": line.corrects, "in": line.corrected_in} if line.corrects else {})


def _line(value: dict[str, Any]) -> SegmentLine:
    try:
        corrects, number = value.get("corrects", ""), value.get("in", -1)
        return SegmentLine(value["ms"], value["id"], value["tenant"], value["entry"], corrects, number)
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenSegment(f"a line is no entry: {error}") from None
