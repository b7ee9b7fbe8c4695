"""Entries of the ledger as a trace: asked from the admin API day by day, so one day is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from stratos.cli.load.traces.export import LedgerTrace
from stratos.cli.load.traces.mooncake import TraceRow
from stratos.cli.money.ledger_files import entries_of_day
from stratos.common.errors import BadRequest
from stratos.rpc.clients.admin import AdminClient


def days_from(first: str, last: str) -> list[str]:
    """UTC days, both ends included; raises ``BadRequest``."""
    try:
        begin, end = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError:
        raise BadRequest(f"--first and --last must be days such as 2026-11-23, not {first!r} and {last!r}") from None
    if end < begin:
        raise BadRequest("--last must not be before --first", param="--last")
    return [str(begin + timedelta(days=number)) for number in range((end - begin).days + 1)]


def exported_rows(
    client: AdminClient, days: Sequence[str], tenants: Sequence[str] | None, trace: LedgerTrace
) -> Iterator[TraceRow]:
    """Rows of all days.

    Args:
        client: of the admin API.
        days: in their order.
        tenants: whose requests; ``None`` for all, which only the platform's admin may ask.
        trace: makes them.

    Raises:
        StratosError: what the admin API answers.
    """
    asked = tenants or [row["id"] for row in client.call("GET", "/ledger/tenants")["data"]]
    for day in days:
        yield from trace.rows([entry for tenant in asked for entry in entries_of_day(client, tenant, day)])
