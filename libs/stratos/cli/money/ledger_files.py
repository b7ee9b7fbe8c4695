"""Entries of the ledger as files: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.ledger.exports import ENTRY_COLUMNS, csv_text
from stratos.core.ledger.statement import days_of
from stratos.rpc.clients.admin import AdminClient

_TEXTS = {
    "request_id", "http_request_id", "tenant", "key_id", "plan", "model", "model_size", "adapter", "route", "outcome",
}  # fmt: skip


def entries_of_month(client: AdminClient, tenant: str, month: str) -> Iterator[dict[str, Any]]:
    """All entries of a tenant's month, each once; "" is the tenant of the key.

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
    """All entries of a tenant's day, each once, in no order; raises what the admin API answers."""
    whose = {"tenant": tenant} if tenant else {}
    seen: set[str] = set()
    cursor = "0"
    while True:
        page = client.call("GET", "/ledger", day=day, cursor=cursor, **whose)
        yield from (row for row in page["data"] if row["request_id"] not in seen)
        seen |= {row["request_id"] for row in page["data"]}
        cursor = str(page["next_cursor"])
        if cursor == "0":
            return


def write_entries(path: Path, shape: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file, mode 0600.

    Raises:
        BadRequest: the shape is not known, or needs what is not installed.
    """
    if shape == "csv":
        write_file(path, csv_text(rows, ENTRY_COLUMNS).encode())
    elif shape == "parquet":
        write_file(path, _parquet(rows))
    else:
        raise BadRequest("--format must be csv or parquet", param="--format")


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadRequest("parquet needs pyarrow: pip install 'stratosserve[parquet]'", param="--format") from None
    kinds = {name: pa.string() if name in _TEXTS else pa.int64() for name in ENTRY_COLUMNS} | dict.fromkeys(
        ("is_kept", "is_external"), pa.bool_()
    )
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(list(kinds.items())))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def write_file(path: Path, data: bytes) -> None:
    """Write a file, mode 0600 where it is new; raises ``BadRequest`` where it cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from None
