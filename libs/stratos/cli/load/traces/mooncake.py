"""Mooncake's trace format: a line is one request, as JSON, in the order of arrival.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

``timestamp`` is in milliseconds after the beginning.  A hash id names a block of 512 prompt tokens together with all
before it, so requests with the same leading ids share that much of their prompt.  Ours may also have ``tenant`` and
``model``.  A file is read line by line, and a line that is wrong is refused by its number.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from stratos.common.errors import BadRequest
from stratos.core.ledger.prefix_hashes import PREFIX_TOKENS

BLOCK_TOKENS = PREFIX_TOKENS
MAX_LINE = 1 << 20
"""Characters; a prompt of 10 M tokens has 20,000 hash ids."""
MAX_TOKENS = 10_000_000
"""Tokens of a prompt, or of an answer."""
_FIELDS = {"timestamp", "input_length", "output_length", "hash_ids", "tenant", "model", "type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request."""

    timestamp_ms: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int | str, ...] = ()
    tenant: str = ""
    model: str = ""

    def as_line(self) -> str:
        """JSON, with its line end; fields in the order of Mooncake's files."""
        whole = int(self.timestamp_ms) if self.timestamp_ms == int(self.timestamp_ms) else round(self.timestamp_ms, 3)
        content: dict[str, Any] = {
            "timestamp": whole,
            "input_length": self.num_prompt_tokens,
            "output_length": self.num_output_tokens,
            "hash_ids": list(self.hash_ids),
        }
        content |= {name: value for name, value in (("tenant", self.tenant), ("model", self.model)) if value}
        return json.dumps(content) + "\n"


@dataclass(frozen=True, slots=True)
class TraceExtent:
    """Size of a file."""

    num_requests: int
    duration_s: float
    """From its beginning to the last arrival."""


def read_rows(path: Path, tenants: Container[str] | None = None) -> Iterator[TraceRow]:
    """Rows of a file, in bounded memory.

    Args:
        path: of the file.
        tenants: known ones; ``None`` takes any.

    Raises:
        BadRequest: the file cannot be read, or names the line that is wrong.
    """
    last_ms = 0.0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in _lines(file, path):
                row = _row(line, path, number, tenants)
                if row.timestamp_ms < last_ms:
                    raise _refused(path, number, f"timestamp {row.timestamp_ms:g} is before the {last_ms:g} above it")
                last_ms = row.timestamp_ms
                yield row
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", param="--arrivals") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{path} is not UTF-8", param="--arrivals") from None


def trace_extent(path: Path, tenants: Container[str] | None = None) -> TraceExtent:
    """Read a whole file; arguments and errors are those of ``read_rows``."""
    count, last_ms = 0, 0.0
    for row in read_rows(path, tenants):
        count, last_ms = count + 1, row.timestamp_ms
    return TraceExtent(count, last_ms / 1e3)


def write_rows(path: Path, rows: Iterable[TraceRow]) -> int:
    """Write a file row by row; returns their number.

    Raises:
        BadRequest: it cannot be written.
    """
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(row.as_line())
                count += 1
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from None
    return count


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise _refused(path, number, f"longer than {MAX_LINE} characters")
        if line.strip():
            yield number, line


def _row(line: str, path: Path, number: int, tenants: Container[str] | None) -> TraceRow:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise _refused(path, number, "not JSON") from None
    fault = _fault(content)
    if not fault and tenants is not None and content.get("tenant", "") and content["tenant"] not in tenants:
        fault = f"tenant {content['tenant']!r} is not in the file of --tenants"
    if fault:
        raise _refused(path, number, fault)
    return TraceRow(
        timestamp_ms=content["timestamp"],
        num_prompt_tokens=int(content["input_length"]),
        num_output_tokens=int(content["output_length"]),
        hash_ids=tuple(content.get("hash_ids", ())),
        tenant=content.get("tenant", ""),
        model=content.get("model", ""),
    )


def _fault(content: Any) -> str:
    if not isinstance(content, dict):
        return "not a JSON object"
    if unknown := content.keys() - _FIELDS:
        return f"unknown field {min(unknown)!r}"
    if not _is_number(content.get("timestamp")) or content["timestamp"] < 0:
        return "timestamp must be a number of milliseconds, at least 0"
    for name in ("input_length", "output_length"):
        value: Any = content.get(name)
        if not _is_number(value) or value != int(value) or not 1 <= value <= MAX_TOKENS:
            return f"{name} must be a whole number, at least 1 and at most {MAX_TOKENS:,}"
    return _optional_fault(content)


def _optional_fault(content: dict[str, Any]) -> str:
    ids = content.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(one, int | str) for one in ids):
        return "hash_ids must be a list of numbers or texts"
    if len(ids) * BLOCK_TOKENS >= content["input_length"] + BLOCK_TOKENS:
        return f"{len(ids)} hash_ids are more than {content['input_length']} tokens have blocks of {BLOCK_TOKENS}"
    texts = (content.get(name, "") for name in ("tenant", "model"))
    return "" if all(isinstance(text, str) for text in texts) else "tenant and model must be texts"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _refused(path: Path, number: int, fault: str) -> BadRequest:
    return BadRequest(f"{path}:{number}: {fault}", param="--arrivals")
