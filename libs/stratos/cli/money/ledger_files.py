"""Entries of the ledger as files: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from stratos.common.errors import BadRequest
from stratos.core.ledger.exports import ENTRY_COLUMNS, csv_text
from stratos.core.ledger.statement import days_of
from stratos.rpc.clients.admin import AdminClient

_ROWS = 5000
_TEXTS = {
    "request_id", "http_request_id", "tenant", "key_id", "plan", "model", "model_size", "adapter", "route", "outcome",
    "cost_tags", "revision",
}  # fmt: skip


def entries_of_month(client: AdminClient, tenant: str, month: str) -> Iterator[dict[str, Any]]:
    """All entries of a tenant's month in the order of their arrival; "" is the tenant of the key.

    Raises:
        BadRequest: not a month.
        StratosError: what the admin API answers.
    """
    try:
        days = days_of(month)
    except ValueError as error:
        raise BadRequest(str(error), param="--month") from None
    for day in days:
        yield from entries_of_day(client, tenant, day)


def entries_of_day(client: AdminClient, tenant: str, day: str) -> Iterator[dict[str, Any]]:
    """All entries of a tenant's day in the order of their arrival; raises what the admin API answers."""
    whose = {"tenant": tenant} if tenant else {}
    cursor: str | None = "0"
    while cursor is not None:
        page = client.call("GET", "/ledger", day=day, cursor=cursor, **whose)
        yield from page["data"]
        cursor = str(page["next_cursor"]) if page["next_cursor"] else None


def write_entries(path: Path, shape: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a file, mode 0600, with some rows in memory at a time; returns how many rows there are.

    Raises:
        BadRequest: the shape is not known, or needs what is not installed; or the file cannot be written.
    """
    if shape not in _WRITERS:
        raise BadRequest("--format must be csv or parquet", param="--format")
    left, num_rows = iter(rows), 0
    part = list(islice(left, _ROWS))  # a question that is refused leaves no file
    with _new_file(path) as file, _WRITERS[shape](file) as write:
        while part:
            write(part)
            num_rows += len(part)
            part = list(islice(left, _ROWS))
    return num_rows


@contextmanager
def _csv(file: BinaryIO) -> Iterator[_Write]:
    file.write(csv_text([], ENTRY_COLUMNS).encode())
    yield lambda rows: file.write(csv_text(rows, ENTRY_COLUMNS, has_head=False).encode())


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[_Write]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadRequest("parquet needs pyarrow: pip install 'stratosserve[parquet]'", param="--format") from None
    kinds = {name: pa.string() if name in _TEXTS else pa.int64() for name in ENTRY_COLUMNS} | dict.fromkeys(
        ("is_kept", "is_external"), pa.bool_()
    )
    schema = pa.schema(list(kinds.items()))
    with pq.ParquetWriter(file, schema) as writer:
        yield lambda rows: writer.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema))


_Write = Callable[[Sequence[Mapping[str, Any]]], Any]
_WRITERS = {"csv": _csv, "parquet": _parquet}


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file, mode 0600 where it is new; raises ``BadRequest`` where it cannot be written."""
    with _new_file(path) as file:
        file.write(data)
